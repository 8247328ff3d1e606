"""The inner compiler's own partition, as it would be without a budget (Inductor's min-cut)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import failed, finish


@dataclass(frozen=True, slots=True)
class MinCut:
    """The inner compiler's own partition, as without a budget: `RematProblem.reference`, unchanged."""

    name: ClassVar[str] = "min_cut"

    def plan(self, problem: RematProblem) -> PlanResult:
        """The reference plan; FAILED if the problem has none."""
        if problem.reference is None:
            return failed(self.name, "the problem has no reference partition; capture it with the inner compiler's")
        return finish(problem, self.name, problem.reference)
