"""What a graph may take in the first step that runs it, when nothing is known of the graphs behind it.

    the step goes on at a graph break     a quarter of what is left of the budget
    it returns no loss, sizes change      what is left, of which it may hold half until its backward
    else                                  what is left

What is left is the budget less what the graphs hold whose backward is still to come.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.options import BudgetKind, RematOptions, format_bytes
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.simulate.step_peak import Call, GraphMemory, Turn, whole_step_peak
from remat_compiler.step_budget.compiled_graph import PlannedGraph
from remat_compiler.step_budget.coordinator import StepCoordinator, share_budget
from remat_compiler.step_budget.dynamic_graph import Onward, first_allowance
from remat_compiler.step_budget.step_watch import WatchedStep

logger = logging.getLogger(__name__)


def first_request_of_several(
    gm: fx.GraphModule, options: RematOptions, request: PartitionRequest, coordinator: StepCoordinator[PlannedGraph]
) -> PartitionRequest | None:
    """What to aim for as long as the other graphs of the step are not known; `None` for a graph that stands alone.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        request: What to aim for if it were alone.
        coordinator: Knows of the step that is run.
    """
    kind = options.memory_budget.kind
    before, onward = coordinator.open_calls_sharing(options), onward_of(gm, coordinator, changing=False)
    limited = kind is not BudgetKind.MIN and (request.budget_bytes is not None or request.fraction is not None)
    if not limited or not (before or onward is Onward.SURELY):
        return None
    if request.budget_bytes is None:
        return replace(request, take_smallest=True)
    allowed = first_allowance(request.budget_bytes - coordinator.held_bytes(options), onward)
    return replace(request, budget_bytes=allowed.limit_bytes, take_smallest=True)


def part_of_fraction(gm: fx.GraphModule, options: RematOptions, request: PartitionRequest) -> PartitionRequest | None:
    """What to aim for where a fraction is too little for this graph alone: it may do for the step; `None` if it is all.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        request: What to aim for if it were alone.
    """
    if options.memory_budget.kind is not BudgetKind.FRACTION or torch_compat.returns_scalar(gm):
        return None
    return replace(request, take_smallest=True)


def allowance_of_several(
    gm: fx.GraphModule, options: RematOptions, limit_bytes: int, coordinator: StepCoordinator[PlannedGraph]
) -> Allowance | None:
    """The same for a graph of changing sizes: what it may take at any of them.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        limit_bytes: The budget of the step.
        coordinator: Knows of the step that is run.
    """
    onward = onward_of(gm, coordinator, changing=True)
    if coordinator.open_calls_sharing(options):
        gc.collect()  # what is left of a step that was refused may only wait for that
    if not coordinator.open_calls_sharing(options) and onward is Onward.NO:
        return None
    return first_allowance(limit_bytes - coordinator.held_bytes(options), onward)


def onward_of(gm: fx.GraphModule, coordinator: StepCoordinator[PlannedGraph], *, changing: bool) -> Onward:
    """Whether the step goes on in other graphs behind this one."""
    if torch_compat.ends_at_graph_break(gm):
        return Onward.SURELY
    if not changing or torch_compat.returns_scalar(gm):
        return Onward.NO
    compilation = torch_compat.frame_compilation()
    alone = compilation is not None and compilation.earlier > 0 and coordinator.was_whole_step(compilation.frame)
    return Onward.NO if alone else Onward.PERHAPS


def check_first_step(
    memory: GraphMemory, options: RematOptions, limit_bytes: int, coordinator: StepCoordinator[PlannedGraph]
) -> None:
    """Refuse a graph that exceeds the budget with those of its step that ran before it.

    Raises:
        InfeasibleBudget: It does, and the options do not say to take the smallest peak, which is then warned of.
    """
    step = coordinator.watch.current
    # What the device has left, where the budget is that, is less what the others hold already.
    in_bytes = options.memory_budget.kind is BudgetKind.BYTES
    if not in_bytes or not all(share_budget(graph.options, options) for graph in step.graphs):
        step = WatchedStep[PlannedGraph]()
    memories = [one for one in step.notes if one is not None]
    if len(memories) < len(step.notes):
        return
    new = len(memories)
    calls = [*(Call(i, call.passed) for i, call in enumerate(step.calls)), Call(new)]
    turns = [*step.turns, (Turn.FORWARD, new)]
    peak = whole_step_peak([*memories, memory], calls, turns)
    if peak <= limit_bytes:
        return
    if options.on_infeasible != "min":
        reason = f"what {new} graphs hold that ran before in the step" if new else ""
        facts = BudgetFacts(asked=options.memory_budget.asked)
        raise InfeasibleBudget(limit_bytes, peak, reason=reason, facts=facts)
    logger.warning(
        "no plan fits memory_budget=%d bytes: a graph of the step peaks at %s beside %d others; training goes on",
        limit_bytes,
        format_bytes(peak),
        new,
    )


def has_fixed_sizes(example_inputs: Sequence[Any]) -> bool:
    """Whether no size of the inputs may change from call to call."""
    sizes = [n for x in example_inputs for n in (x.shape if isinstance(x, torch.Tensor) else [x])]
    return not any(isinstance(n, torch.SymInt) for n in sizes)
