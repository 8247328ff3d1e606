"""The planner that users get: least added time within a byte budget on the exact peak, for any graph.

A quick search comes first: seeds from gap greedy (several settings, both placements of tangent-free operators) and
from the block DP (several cuttings), which trim and a local search improve.  Then the `portfolio` continues for as long
as `time_limit` says.  The exact profile judges all.  Every limit counts work, never seconds, so that the same problem
gives the same plan anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import Candidate, choose
from remat_passes.planning.portfolio import WORK_PER_SECOND, improve
from remat_passes.policies.space import PolicySpace
from remat_passes.search.moving_search import MOST_ENTRIES, MovingSearch, search_between
from remat_passes.search.policy_search import improve_best, search_policies
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate

HALVINGS = 8
"""Budgets tried to find the lowest peak within a time limit."""
LAST_CLIMBS = 8
"""How much more work the last climbs are given than those before."""
MOST_WORK = 2**53
"""More work than any search does: the limit if a user names more seconds."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Gap greedy, block DP, trim and local search; the cheapest plan that fits wins.

    Attributes:
        effort: Work of the quick search for each operator of the graph.  The default plans 1,000 operators in about
            half a second.
        time_limit: Approximate seconds for the stages after the quick search, as an amount of work; 0 for none of
            them, `None` for an amount in proportion to the graph, 2 seconds at most.
        seed: Start of the random numbers of the local search.
        reorders: Whether the backward may run in another order than the graph's.
    """

    name: ClassVar[str] = "auto"
    effort: int = 10_000
    time_limit: float | None = None
    seed: int = 1
    reorders: bool = True

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan`.  A reference partition that fits is returned unchanged."""
        if problem.reference is not None:
            # The inner compiler's own partition is what runs without a budget: if it fits, nothing has to change.
            result = choose(problem, self.name, [Candidate(problem.reference)])
            if result.peak_bytes <= problem.budget_bytes:
                return result
        if problem.moves:
            return self._moving(problem)
        best = self._recomputing(problem)
        return choose(problem, self.name, [Candidate(best.plan())])

    def _moving(self, problem: RematProblem) -> PlanResult:
        """The plan where values may be moved: never a slower one than without."""
        moving = MovingSearch.of(problem)
        # One action for each value first, which is quick, then sequences, which know more; each improves the other's.
        search_policies(moving, self.effort, self.seed)
        if not moving.free:
            without = self._recomputing(problem).plan()
            moving.offer([without])
            improve_best(moving, self.effort, self.seed)
            search_between(moving, without, lambda budget, share: self._search(problem, budget, share))
            improve_best(moving, LAST_CLIMBS * self.effort, self.seed + 1)
        assert moving.best is not None
        return choose(problem, self.name, [Candidate(moving.best.plan)])

    def _recomputing(self, problem: RematProblem) -> SequenceCandidate:
        """The best sequence where nothing is moved."""
        search = self._search(problem, problem.budget_bytes)
        search.run()
        if not search.solved:
            # A search for the lowest peak gets below what one that aims just under the budget reaches.
            lowest = self._search(problem, 0)
            lowest.run()
            search.adopt([*lowest.pool[:4], *self._within_time(problem, lowest)])
        limit = None if self.time_limit is None else int(min(WORK_PER_SECOND * self.time_limit, MOST_WORK))
        return improve(search, limit)

    def smallest_peak(self, problem: RematProblem) -> PlanResult:
        """The plan of the lowest peak found within `max_added_ns`; its status is for the problem's budget."""
        search = self._search(problem, 0)
        search.run()
        best = search.adopt(self._within_time(problem, search))
        if not problem.moves:
            return choose(problem, self.name, [Candidate(best.plan())])
        lowest = MovingSearch.of(replace(problem, budget_bytes=0))
        kept = (space.kept for space in PolicySpace.of_all(problem))
        lowest.adopt(best.plan())
        lowest.offer([*kept, *(entry.plan() for entry in search.pool[:MOST_ENTRIES])])
        assert lowest.best is not None
        return choose(problem, self.name, [Candidate(lowest.best.plan)])

    def frontier(self, problem: RematProblem, budgets: Sequence[int]) -> list[PlanResult]:
        """One result for each budget, in the order of `budgets`.

        A smaller budget never peaks higher and a larger budget never costs more: if the plan for one budget serves
        another budget better than its own, it takes that place.
        """
        # Every plan is offered to every budget, so the frontier is monotonic although each search is a heuristic.
        own = [self.plan(replace(problem, budget_bytes=budget)) for budget in sorted(set(budgets))]
        plans = [Candidate(result.plan, result.stats) for result in own if result.plan is not None]
        return [choose(replace(problem, budget_bytes=budget), self.name, plans) for budget in budgets]

    def _search(self, problem: RematProblem, budget: int, share: int = 1) -> SequenceSearch:
        """A search for `budget` with a part of the effort."""
        return SequenceSearch.of(replace(problem, budget_bytes=budget), self.effort // share, self.seed, self.reorders)

    def _within_time(self, problem: RematProblem, lowest: SequenceSearch) -> list[SequenceCandidate]:
        """Entries of low peaks within `max_added_ns`, by halving the range of budgets; none without such a limit."""
        # From the lowest peak of all, which may take too long, to that of the best entry within the time.
        low, high = min(e.peak for e in lowest.pool), lowest.pool[0].peak
        found: list[SequenceCandidate] = []
        while problem.max_added_ns is not None and len(found) < HALVINGS and high - low > high // 200:
            search = self._search(problem, (low + high) // 2, HALVINGS)
            found.append(search.run())
            if search.solved:
                high = found[-1].peak
            else:
                low = (low + high) // 2
        return found
