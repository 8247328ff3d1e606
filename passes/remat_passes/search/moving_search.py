"""The search of `auto` where values may be moved: which to keep, to recompute and to move.

A plan for more memory than there is, brought within the budget by transfers, is a plan of all three.  How much more is
the choice: with the memory of the step without a budget, everything is moved and nothing recomputed; with the budget
itself, nothing is moved; more than budget and room together is of no use.  Between them copies and recomputation share
the work, and mostly one amount is best.

    sequences for some budgets between ─► transfers for each ─► the best, and budgets near its own ─► neighbours
                                               │ over the budget
                                               ▼
                     sequences in which what was saved takes no memory

A sequence for more memory may hold all that is more at any time; but only values with long gaps can be away.  So if
transfers do not bring it within the budget, the values that it saves for the backward are taken for moved, and another
sequence is looked for, as good as it can be beside what is left of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate, simulate_arrays
from remat_compiler.simulate.transfers import moved_bytes
from remat_passes.search.lowest_peak import least_bytes
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.transfers.moving import saved_storages, with_transfers

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Budgets that are tried first, between the problem's and the largest of use."""
HALVINGS = 2
"""Times that budgets on both sides of the best one are tried."""
MOST_ENTRIES = 6
"""Sequences of each search that get transfers."""
FAR = 1.25
"""A best peak above so many budgets is not brought within it by budgets near its own."""
CLOSER = 2
"""Searches beside values that are moved."""


@dataclass(frozen=True, slots=True, eq=False)
class MovingCandidate:
    """A plan with transfers, or without, and its figures."""

    plan: Plan
    peak_bytes: int
    added_ns: int

    def rank(self, budget_bytes: int) -> tuple[bool, int, int, int]:
        """Smaller is better: within the budget, then the least time; of the others, the lowest peak."""
        if self.peak_bytes > budget_bytes:
            return (True, self.peak_bytes, self.added_ns, len(self.plan.transfers))
        return (False, self.added_ns, len(self.plan.transfers), self.peak_bytes)


@dataclass(slots=True, eq=False)
class MovingSearch:
    """Sequences brought within the budget by transfers.

    Attributes:
        problem: The problem; it has a link and room.
        arrays: The same as arrays.
        best: The best plan so far.
    """

    problem: RematProblem
    arrays: GraphArrays
    best: MovingCandidate | None = None

    @staticmethod
    def of(problem: RematProblem) -> MovingSearch:
        """The search for `problem`."""
        return MovingSearch(problem, GraphArrays.of(problem.graph, problem.costs))

    @property
    def free(self) -> bool:
        """Whether the best plan fits and adds no time."""
        return self.best is not None and self.best.peak_bytes <= self.problem.budget_bytes and not self.best.added_ns

    def offer(self, plans: Iterable[Plan]) -> MovingCandidate:
        """Try plans, one at least, and with transfers where they do not fit; the best of them."""
        made = []
        for plan in plans:
            made.append(self._judged(plan))
            # What comes back takes new memory: where nothing fits, the plan may be lower as it is.
            if made[-1].peak_bytes > self.problem.budget_bytes:
                made.append(self._judged(with_transfers(self.problem, self.arrays, plan)))
        best = min(made, key=self._rank)
        self._keep(best)
        return best

    def adopt(self, plan: Plan) -> None:
        """Try a plan as it is, unless it moves more than there is room for."""
        if moved_bytes(self.problem.graph, plan) <= self.problem.offload_bytes:
            self._keep(self._judged(plan))

    def _judged(self, plan: Plan) -> MovingCandidate:
        timeline = simulate_arrays(self.arrays, np.array(plan.steps, np.int64), plan.boundary, plan.transfers)
        return MovingCandidate(plan, timeline.peak_bytes, timeline.added_ns)

    def _keep(self, made: MovingCandidate) -> None:
        """Remember `made` if it is the best so far."""
        if self.best is None or self._rank(made) < self._rank(self.best):
            self.best = made

    def _rank(self, made: MovingCandidate) -> tuple[bool, int, int, int]:
        return made.rank(self.problem.budget_bytes)


def budgets_of(moving: MovingSearch) -> Callable[[float], int]:
    """Budgets from the problem's (0), or what every plan needs, to the largest of use (1).

    Transfers lower a peak by no more than there is room for, and a plan that stays above the best one is of no use; and
    above the peak of what recomputes nothing, nothing changes.
    """
    problem = moving.problem
    low = max(problem.budget_bytes, least_bytes(problem))
    most = simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph)).peak_bytes
    reached = low if moving.best is None else max(low, moving.best.peak_bytes)
    high = max(min(most, reached + problem.offload_bytes), low)
    return lambda share: low + int(share * (high - low))


def with_free(problem: RematProblem, storages: Collection[int], budget_bytes: int) -> RematProblem:
    """The problem without transfers in which these storages take no memory, with another budget."""
    graph = problem.graph
    sized = tuple(replace(one, size_bytes=0) if one.id in storages else one for one in graph.storages)
    return replace(problem, graph=replace(graph, storages=sized), budget_bytes=budget_bytes, offload_bytes=0)


def search_between(
    moving: MovingSearch, without: Plan, search_for: Callable[[RematProblem, int], SequenceSearch]
) -> None:
    """Offer sequences for budgets between the problem's and the largest of use.

    Args:
        moving: Gets the sequences.
        without: The best plan that moves nothing.
        search_for: A search for a problem without transfers, and by what its effort is divided.
    """
    problem, budget_at = moving.problem, budgets_of(moving)
    tried: dict[float, tuple[bool, int, int, int]] = {}

    def found(asked: RematProblem) -> MovingCandidate:
        search = search_for(asked, len(SHARES) + HALVINGS)
        search.run()
        return moving.offer(entry.plan() for entry in search.pool[:MOST_ENTRIES])

    def attempt(share: float) -> None:
        budget_bytes = problem.budget_bytes
        best = found(replace(problem, budget_bytes=budget_at(share), offload_bytes=0))
        ranks, left_bytes = [best.rank(budget_bytes)], budget_bytes
        over = best.peak_bytes > budget_bytes
        saved = saved_storages(problem, moving.arrays, best.plan) if over else set[int]()
        for _ in range(CLOSER):
            if best.peak_bytes <= budget_bytes or left_bytes <= 0:
                break
            best = found(with_free(problem, saved, left_bytes))
            ranks.append(best.rank(budget_bytes))
            # As much less as it takes to have them there for their uses.
            left_bytes -= max(best.peak_bytes - budget_bytes, 0)
        tried[share] = min(ranks)

    # With the budget itself nothing is moved, and that has been searched.
    tried[0.0] = moving.offer([without]).rank(problem.budget_bytes)
    for share in SHARES:
        attempt(share)
    assert moving.best is not None
    # The smallest peak is looked for by itself.
    if problem.budget_bytes > NO_BYTES and moving.best.peak_bytes > FAR * problem.budget_bytes:
        return
    width = SHARES[0]
    for _ in range(HALVINGS):
        width /= 2
        centre = min(tried, key=lambda share: (tried[share], share))
        for share in (centre - width, centre + width):
            if 0.0 <= share <= 1.0 and share not in tried and not moving.free:
                attempt(share)
