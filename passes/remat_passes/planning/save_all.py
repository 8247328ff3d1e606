"""Save everything: no recomputation beyond what the user's own checkpoint regions demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import finish
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, recompute


@dataclass(frozen=True, slots=True)
class SaveAll:
    """Each operator once, in joint order; values that must not be saved are recomputed just in time.

    Attributes:
        placement: Where tangent-free operators run.
    """

    name: ClassVar[str] = "save_all"
    placement: Placement = Placement.LAZY

    def plan(self, problem: RematProblem) -> PlanResult:
        """The plan, whatever the budget."""
        index = StepIndex.of(problem.graph)
        order = baseline_order(index, self.placement)
        return finish(problem, self.name, recompute(index, order, index.all_savable()))
