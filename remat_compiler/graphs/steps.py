"""What follows the training steps of this process."""

from __future__ import annotations

from remat_compiler import torch_compat
from remat_compiler.compilation.lateness import told_if_late
from remat_compiler.step_budget.behind_the_plan import BehindThePlan
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.replan import decide

COORDINATOR: StepCoordinator[CompiledGraph] = StepCoordinator(torch_compat.reserving_no_more()(told_if_late()(decide)))
"""Follows the training steps of this process."""
_BEHIND = BehindThePlan(lambda: COORDINATOR.watch.here.open)


def steps_are_known() -> bool:
    """Whether all graphs that ran have their share of the budget; else their reports are of what they have so far."""
    return not COORDINATOR.unsettled_graphs()
