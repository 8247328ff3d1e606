"""The planner that users get: least added time within a byte budget on the exact peak, for any graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.gap_greedy import relieve
from remat_passes.planning.interface import Candidate, choose
from remat_passes.planning.profile import arrays_of
from remat_passes.planning.sequence import Placement, StepIndex, baseline_order, recompute
from remat_passes.planning.trim import trim


@dataclass(frozen=True, slots=True)
class Auto:
    """Gap greedy and trim from both placements of tangent-free operators; the cheapest plan that fits wins."""

    name: ClassVar[str] = "auto"

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; see `Planner.plan`."""
        budget = problem.budget_bytes
        if problem.reference is not None:
            result = choose(problem, self.name, [Candidate(problem.reference)])
            if result.peak_bytes <= budget:
                return result
        g = arrays_of(problem)
        index = StepIndex.of(problem.graph)
        candidates = []
        for placement in Placement:
            base = recompute(index, baseline_order(index, placement), index.all_savable())
            steps = np.array(base.steps, np.int64)
            for share in (0.06, 0.15, 0.5):
                found, boundary, peak, _ = relieve(g, steps, base.boundary, budget, share, 1, 0.0, 1, 12, 4000)
                found, boundary, _ = trim(g, found, boundary, max(budget, peak), 50)
                candidates.append(Candidate(Plan(tuple(map(OpId, found.tolist())), int(boundary))))
        return choose(problem, self.name, candidates)
