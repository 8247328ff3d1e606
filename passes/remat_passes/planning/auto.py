"""The planner that users get: least added time within a byte budget on the exact peak, for any graph.

Seeds come from gap greedy (several settings, both placements of tangent-free operators) and from the block DP
(several segmentations).  Trim and a local search improve them.  The exact profile judges all.  Every limit counts
work, never seconds, so that the same problem gives the same plan anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import Candidate, choose
from remat_passes.planning.search import Search


@dataclass(frozen=True, slots=True)
class Auto:
    """Gap greedy, block DP, trim and local search; the cheapest plan that fits wins.

    Attributes:
        effort: Work allowed for each operator of the graph; the search stops there.  The default plans 1,000
            operators in about half a second.
        seed: Start of the random numbers of the local search.
    """

    name: ClassVar[str] = "auto"
    effort: int = 5_000
    seed: int = 1

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan`.  A reference partition that fits is returned unchanged."""
        if problem.reference is not None:
            result = choose(problem, self.name, [Candidate(problem.reference)])
            if result.peak_bytes <= problem.budget_bytes:
                return result
        return self._answer(problem, Search.of(problem, self.effort, self.seed))

    def smallest_peak(self, problem: RematProblem) -> PlanResult:
        """The plan of the lowest peak found within `max_added_ns`; its status is for the problem's budget."""
        search = Search.of(replace(problem, budget_bytes=0), self.effort, self.seed)
        return self._answer(problem, search)

    def frontier(self, problem: RematProblem, budgets: Sequence[int]) -> list[PlanResult]:
        """One result for each budget, in the order of `budgets`.

        A smaller budget never peaks higher and a larger budget never costs more: where one plan serves
        another budget better than its own, it takes that place.
        """
        own = {budget: self.plan(replace(problem, budget_bytes=budget)) for budget in sorted(set(budgets))}
        plans = [Candidate(result.plan, result.stats) for result in own.values() if result.plan is not None]
        return [choose(replace(problem, budget_bytes=budget), self.name, plans) for budget in budgets]

    def _answer(self, problem: RematProblem, search: Search) -> PlanResult:
        plan, stats = search.run()
        return choose(problem, self.name, [Candidate(plan, stats)])
