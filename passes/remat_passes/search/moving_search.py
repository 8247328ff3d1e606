"""The search of `auto` where values may be moved: which to keep, to recompute and to move.

A plan for more memory than there is, brought within the budget by transfers, is a plan of all three.  How much more is
the choice: with the memory of the step without a budget, everything is moved and nothing recomputed; with the budget
itself, nothing is moved.  Between them copies and recomputation share the work, and mostly one amount is best.

    sequences for some budgets between ─► transfers for each ─► the best, and budgets near its own ─► neighbours
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate, simulate_arrays
from remat_compiler.simulate.transfers import moved_bytes
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.transfers.moving import with_transfers

SHARES = (0.25, 0.5, 0.75)
"""Budgets that are tried first, between the problem's and the peak without a budget."""
HALVINGS = 3
"""Times that budgets on both sides of the best one are tried."""
MOST_ENTRIES = 6
"""Sequences of each search that get transfers."""


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

    def offer(self, plans: Iterable[Plan]) -> tuple[bool, int, int, int]:
        """Try plans, one at least, and with transfers where they do not fit; the rank of the best of them."""
        ranks = []
        for plan in plans:
            made = self._judged(plan)
            ranks.append(self._kept(made))
            # What comes back takes new memory: where nothing fits, the plan may be lower as it is.
            if made.peak_bytes > self.problem.budget_bytes:
                ranks.append(self._kept(self._judged(with_transfers(self.problem, self.arrays, plan))))
        return min(ranks)

    def adopt(self, plan: Plan) -> None:
        """Try a plan as it is, unless it moves more than there is room for."""
        if moved_bytes(self.problem.graph, plan) <= self.problem.offload_bytes:
            self._kept(self._judged(plan))

    def _judged(self, plan: Plan) -> MovingCandidate:
        timeline = simulate_arrays(self.arrays, np.array(plan.steps, np.int64), plan.boundary, plan.transfers)
        return MovingCandidate(plan, timeline.peak_bytes, timeline.added_ns)

    def _kept(self, made: MovingCandidate) -> tuple[bool, int, int, int]:
        """Remember `made` if it is the best so far; its rank."""
        budget = self.problem.budget_bytes
        if self.best is None or made.rank(budget) < self.best.rank(budget):
            self.best = made
        return made.rank(budget)


def budgets_of(problem: RematProblem) -> Callable[[float], int]:
    """Budgets from the problem's (0) to the peak of what recomputes nothing (1), above which nothing changes."""
    low = problem.budget_bytes
    high = max(simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph)).peak_bytes, low)
    return lambda share: low + int(share * (high - low))


def search_between(moving: MovingSearch, without: Plan, search_for: Callable[[int, int], SequenceSearch]) -> None:
    """Offer sequences for budgets between the problem's and the peak without a budget.

    Args:
        moving: Gets the sequences.
        without: The best plan that moves nothing.
        search_for: A search for a budget, with a part of the effort: the budget, and by what the effort is divided.
    """
    budget_at = budgets_of(moving.problem)
    tried: dict[float, tuple[bool, int, int, int]] = {}

    def attempt(share: float) -> None:
        search = search_for(budget_at(share), len(SHARES) + HALVINGS)
        search.run()
        tried[share] = moving.offer(entry.plan() for entry in search.pool[:MOST_ENTRIES])

    # With the budget itself nothing is moved, and that has been searched.
    tried[0.0] = moving.offer([without])
    for share in SHARES:
        attempt(share)
    width = SHARES[0] / 2
    for _ in range(HALVINGS):
        centre = min(tried, key=lambda share: (tried[share], share))
        for share in (centre - width, centre + width):
            if 0.0 <= share <= 1.0 and share not in tried and not moving.free:
                attempt(share)
        width /= 2
