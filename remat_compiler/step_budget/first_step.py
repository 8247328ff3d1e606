"""The limits of a graph in the first step that runs it, when nothing is known of the graphs after it.

    it ends at a graph break              a quarter of the free budget
    it returns no loss, sizes change      the free budget, of which it may hold half until its backward
    n sharded modules may run it          half of the free budget, of which it may hold one of n - 1 parts
    else                                  the free budget

The free budget is the budget less the bytes held by graphs whose backward is still to come, and less what sharded
modules (FSDP2) gather.
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
from remat_compiler.simulate.sharding import FirstStep, first_step
from remat_compiler.simulate.step_peak import Call, GraphMemory, Turn, whole_step_peak
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator, share_budget
from remat_compiler.step_budget.dynamic_graph import Continues, first_allowance
from remat_compiler.step_budget.step_watch import WatchedStep

logger = logging.getLogger(__name__)


def first_request_of_several(
    gm: fx.GraphModule,
    options: RematOptions,
    request: PartitionRequest,
    coordinator: StepCoordinator[CompiledGraph],
    example_inputs: Sequence[Any] = (),
) -> PartitionRequest | None:
    """The request as long as the other graphs of the step are not known; `None` for a graph that stands alone.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        request: The request if it were alone.
        coordinator: Follows the running step.
        example_inputs: The graph's inputs, which tell whether its module is sharded.
    """
    kind = options.memory_budget.kind
    before, continues = coordinator.open_calls_sharing(options), continuation_of(gm, coordinator, changing=False)
    limited = kind is not BudgetKind.MIN and (request.budget_bytes is not None or request.fraction is not None)
    sharded = _sharded(example_inputs)
    if not limited or not (before or continues is Continues.YES or sharded):
        return None
    if request.budget_bytes is None:
        # A fraction is one of the whole step's peak, which nobody knows yet: no part of it can be told in bytes.
        return replace(request, take_smallest=True)
    # The smallest peak if the part is too little: the complete step decides whether all fits.
    free_bytes = request.budget_bytes - coordinator.held_bytes(options)
    if sharded is not None and not torch_compat.returns_scalar(gm):
        allowed = sharded_allowance(free_bytes, sharded)
        return replace(
            request, budget_bytes=allowed.limit_bytes, between_bytes=allowed.between_bytes, take_smallest=True
        )
    allowed = first_allowance(free_bytes - (0 if sharded is None else sharded.ahead_bytes), continues)
    return replace(request, budget_bytes=allowed.limit_bytes, take_smallest=True)


def sharded_allowance(free_bytes: int, sharded: FirstStep) -> Allowance:
    """The limits of a graph that is most likely one of several alike, each of which holds as much until its backward.

    Args:
        free_bytes: Bytes of the budget that are free now.
        sharded: What is known of the sharded modules.
    """
    left_bytes = max(free_bytes - sharded.ahead_bytes, 1)
    # All but one are held while the last one runs, which takes more than each of them holds.
    limit_bytes = max(left_bytes // 2, 1) if sharded.copies > 1 else left_bytes
    held_bytes = max(limit_bytes // max(sharded.copies - 1, 1), 1)
    return Allowance(limit_bytes, held_bytes, limit_bytes)


def _sharded(example_inputs: Sequence[Any]) -> FirstStep | None:
    now = torch_compat.sharded_now(example_inputs)
    return None if now is None else first_step(now, torch_compat.sharded_groups())


def part_of_fraction(gm: fx.GraphModule, options: RematOptions, request: PartitionRequest) -> PartitionRequest | None:
    """The request if a fraction is too little for this graph alone: other graphs may make up for it in the step.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        request: The request if it were alone.

    Returns:
        `None` if no graphs are to be expected after this one, or the budget is no fraction.
    """
    # A graph that returns a loss is most likely the last one.
    if options.memory_budget.kind is not BudgetKind.FRACTION or torch_compat.returns_scalar(gm):
        return None
    return replace(request, take_smallest=True)


def allowance_of_several(
    gm: fx.GraphModule,
    options: RematOptions,
    limit_bytes: int,
    coordinator: StepCoordinator[CompiledGraph],
    example_inputs: Sequence[Any] = (),
) -> Allowance | None:
    """The limits of a graph of changing sizes at any of them; `None` for a graph that stands alone.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        limit_bytes: The budget of the step.
        coordinator: Follows the running step.
        example_inputs: See `first_request_of_several`.
    """
    continues = continuation_of(gm, coordinator, changing=True)
    if coordinator.open_calls_sharing(options):
        gc.collect()  # calls of a refused step may be open only because of reference cycles
    sharded = _sharded(example_inputs)
    if sharded is not None and not torch_compat.returns_scalar(gm):
        return sharded_allowance(limit_bytes - coordinator.held_bytes(options), sharded)
    if not coordinator.open_calls_sharing(options) and continues is Continues.NO and sharded is None:
        return None
    limit_bytes -= 0 if sharded is None else sharded.ahead_bytes
    return first_allowance(limit_bytes - coordinator.held_bytes(options), continues)


def continuation_of(gm: fx.GraphModule, coordinator: StepCoordinator[CompiledGraph], *, changing: bool) -> Continues:
    """Whether the step goes on in other graphs after this one."""
    if torch_compat.ends_at_graph_break(gm):
        return Continues.YES
    # A graph of fixed sizes is compiled again if others follow; one of changing sizes must leave room from the start.
    if not changing or torch_compat.returns_scalar(gm):
        return Continues.NO
    # Another compilation of a function whose graph made up whole steps at its earlier sizes.
    compilation = torch_compat.frame_compilation()
    alone = compilation is not None and compilation.earlier > 0 and coordinator.was_whole_step(compilation.frame)
    return Continues.NO if alone else Continues.MAYBE


def check_first_step(
    memory: GraphMemory, options: RematOptions, limit_bytes: int, coordinator: StepCoordinator[CompiledGraph]
) -> None:
    """Refuse a graph that exceeds the budget together with the earlier graphs of its step.

    Raises:
        InfeasibleBudget: It does, and the options do not say to take the smallest peak, which only warns.
    """
    step = coordinator.watch.current
    # A budget measured on the device ("auto") is less what the others hold already, and budgets of their own are not
    # shared: then the graph is judged by itself.
    in_bytes = options.memory_budget.kind is BudgetKind.BYTES
    if not in_bytes or not all(share_budget(graph.options, options) for graph in step.graphs):
        step = WatchedStep[CompiledGraph]()
    memories = [one for one in step.notes if one is not None]
    if len(memories) < len(step.notes):
        return  # nothing can be said without the memory of all of them
    new = len(memories)
    # One memory for each call, not for each graph: calls of one graph may be at different sizes.
    calls = [*(Call(i, call.passed) for i, call in enumerate(step.calls)), Call(new)]
    turns = [*step.turns, (Turn.FORWARD, new)]
    peak = whole_step_peak([*memories, memory], calls, turns, step.seen)
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
    # Dynamo hands over the sizes that change as arguments of their own, next to the tensors.
    sizes = [n for x in example_inputs for n in (x.shape if isinstance(x, torch.Tensor) else [x])]
    return not any(isinstance(n, torch.SymInt) for n in sizes)
