"""A call beside the calls that are open in its step, as long as they do not share the budget yet."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.units import counted, format_bytes, told_apart

logger = logger_of(__name__)


class Called(Protocol):
    """The graph of a call.

    Attributes:
        coordinator: Follows the steps of the process.
        options: The user's options.
        budget_bytes: The budget of the whole step in bytes; `None` if it is not known in bytes.
        plans: How it may be planned again.
        steps: The steps that it is known to be part of.
        warned: Whether a step that may exceed the budget was told of.
    """

    coordinator: StepCoordinator[Any]
    options: RematOptions
    budget_bytes: int | None
    plans: GraphPlans
    steps: list[Any]
    warned: bool

    @property
    def memory(self) -> GraphMemory | None:
        """Its memory by itself; `None` if that is not known."""
        ...


def check_room(graph: Called, arguments: Sequence[Any]) -> None:
    """Check a call against the calls that are open in its step, with which it does not share the budget yet.

    If sizes change, the call is made to fit, or refused in the first step that runs it.  Else the step may exceed
    the budget until it is known, with a warning.

    Raises:
        InfeasibleBudget: The call does not fit next to what they hold, and the options do not say to go on.
    """
    before, limit = graph.coordinator.open_calls_sharing(graph.options), graph.budget_bytes
    if limit is None:
        return
    held = graph.coordinator.held_bytes(graph.options)
    # Even with nothing open: it may have given way in an earlier step, and gets its limit back.
    if ref(graph) in graph.coordinator.unsettled:
        _make_room(graph, arguments, limit, held)
    if not before:
        return
    memory = graph.plans.memory_at(arguments, graph.memory)
    if memory is None or held + memory.peak_bytes <= limit:
        return
    changing = any(one.plans.at_all_sizes for one in (graph, *(held.graph for held in before)))
    # Once it belongs to known steps its limit was decided for those: a deviating step is warned of, not stopped.
    if changing and graph.options.on_infeasible != "min" and not graph.steps:
        gc.collect()  # what a refused step left behind may be alive only because of reference cycles
        held = graph.coordinator.held_bytes(graph.options)
        if held + memory.peak_bytes > limit:
            reason = f"what {len(before)} graphs hold that ran before in the step"
            facts = BudgetFacts(asked=graph.options.memory_budget.asked)
            raise InfeasibleBudget(limit, held + memory.peak_bytes, reason=reason, facts=facts)
    elif not graph.warned:
        graph.warned = True
        logger.warning(
            "this step may take %s, over memory_budget=%s: %s of compiled graphs before this one, which did not "
            "share the budget with it so far, hold %s; from the next step on they share it",
            *told_apart(held + memory.peak_bytes, limit),
            counted(len(before), "call"),
            format_bytes(held),
        )


def _make_room(graph: Called, arguments: Sequence[Any], limit: int, held: int) -> None:
    """Limit the graph to what the others leave free; if nothing fits that, to its limit in known steps."""
    dispatch = graph.plans.dispatch
    if dispatch is None:
        return
    before = dispatch.allowance
    graph.plans.make_room(limit, held)
    if graph.steps:
        try:
            dispatch.memory_at(arguments)
        except InfeasibleBudget:
            dispatch.allow(before)
