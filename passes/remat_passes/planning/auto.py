"""The planner that users get: least added time within a byte budget on the exact peak, for any graph.

A quick search comes first: seeds from gap greedy (several settings, both placements of tangent-free operators) and
from the block DP (several cuttings), which trim and a local search improve.  Then the `portfolio` continues for as long
as `time_limit` says.  The exact profile judges all.  Every limit counts work, never seconds, so that the same problem
gives the same plan anywhere.

Where the quick search finds nothing, `search.lowest_peak` looks for the smallest peak.  If that is within the budget,
the search goes on from there; else the answer is the plan for that peak as the budget, whatever the budget was: who
asks for the peak that a refusal names gets a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_passes.moves.climb import WORK_PER_SECOND
from remat_passes.planning.chain_dp import ChainDp
from remat_passes.planning.hierarchical import Hierarchical
from remat_passes.planning.interface import Candidate, choose
from remat_passes.planning.portfolio import improve, usual_work
from remat_passes.search.lowest_peak import least_bytes, lowest_peak
from remat_passes.search.moving_search import MovingSearch, search_between
from remat_passes.search.policy_search import improve_best, search_policies
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.search.tight_seeds import TIGHT, TIGHTEST, position, tight_seeds
from remat_passes.sequences.candidate import SequenceCandidate

LOWEST_SHARE = 0.5
"""Part of the work after the quick search that may go into the smallest peak."""
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
            them, `None` for an amount in proportion to the graph, some seconds at most.
        seed: Start of the random numbers of the local search.
        reorders: Whether the backward may run in another order than the graph's.
        thorough: Whether budgets near the smallest peak, and those below it, get searches of their own, which take
            several times as long as the quick one.
    """

    name: ClassVar[str] = "auto"
    effort: int = 10_000
    time_limit: float | None = None
    seed: int = 1
    reorders: bool = True
    thorough: bool = True

    @property
    def refuses_smaller_alike(self) -> bool:
        """Whether a refusal is the answer to smaller budgets, too: a quick plan is not of the smallest peak."""
        return self.thorough

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan`.  A reference partition that fits is returned unchanged."""
        if problem.reference is not None:
            # The inner compiler's own partition is what runs without a budget: if it fits, nothing has to change.
            result = choose(problem, self.name, [Candidate(problem.reference)])
            if result.peak_bytes <= problem.budget_bytes:
                return result
        found = self._planned(problem)
        # Without transfers, the plan is that of the smallest peak already.
        if problem.moves and found.peak_bytes > problem.budget_bytes > NO_BYTES:
            found = self.smallest_peak(problem)
        return found

    def smallest_peak(self, problem: RematProblem) -> PlanResult:
        """The plan of the smallest peak found within `max_added_ns`; its status is for the problem's budget."""
        lowest = self._planned(replace(problem, budget_bytes=NO_BYTES))
        assert lowest.plan is not None
        return choose(problem, self.name, [Candidate(lowest.plan)])

    def _planned(self, problem: RematProblem) -> PlanResult:
        """The best plan that fits, or the one of the smallest peak."""
        if problem.moves:
            return self._moving(problem)
        return choose(problem, self.name, [Candidate(self._recomputing(problem).plan())])

    def _moving(self, problem: RematProblem) -> PlanResult:
        """The plan where values may be moved: never a slower one than without."""
        moving = MovingSearch.of(problem)
        # One action for each value first, which is quick, then sequences, which know more; each improves the other's.
        search_policies(moving, self.effort, self.seed)
        if not moving.free:
            without = self._recomputing(problem).plan()
            moving.offer([without])
            improve_best(moving, self.effort, self.seed)
            search_between(moving, without, lambda asked, share: self._search(asked, asked.budget_bytes, share))
            improve_best(moving, LAST_CLIMBS * self.effort, self.seed + 1)
        assert moving.best is not None
        return choose(problem, self.name, [Candidate(moving.best.plan)])

    def _recomputing(self, problem: RematProblem) -> SequenceCandidate:
        """The best sequence where nothing is moved."""
        limit = None if self.time_limit is None else int(min(WORK_PER_SECOND * self.time_limit, MOST_WORK))

        def search_for(budget: int, share: int) -> SequenceSearch:
            return self._search(problem, budget, share)

        search = self._search(problem, problem.budget_bytes)
        if not self.thorough:
            search.run()
            return improve(search, limit)
        least = least_bytes(problem)
        # A budget below what every plan needs, as where the smallest peak is asked for, is not searched for.
        if search.budget >= least:
            search.run()
        solved = bool(search.pool) and search.solved
        place = position(search, least) if solved else 0.0
        if place <= TIGHTEST:
            work = usual_work(len(search.g.ops), None) if limit is None else int(LOWEST_SHARE * limit)
            limit = None if limit is None else limit - work
            smallest = replace(problem, budget_bytes=NO_BYTES, offload_bytes=0)
            plans = (planner.plan(smallest).plan for planner in (ChainDp(), Hierarchical()))
            lowest = lowest_peak(search_for, least, work, [plan for plan in plans if plan is not None])
            if not solved:
                search = self._search(problem, max(lowest.pool[0].peak, problem.budget_bytes))
            search.take_over(lowest)
        if place <= TIGHT:
            search.adopt(tight_seeds(search, search_for))
        return improve(search, limit)

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
