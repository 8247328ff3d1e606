"""The limits of a graph in the first step that runs it, when nothing is known of the graphs after it.

    it ends at a graph break              a quarter of the free budget
    it returns no loss, sizes change      the free budget, of which it may hold half until its backward
    n sharded modules may run it          half of the free budget, of which it may hold one of n - 1 parts
    n micro-batches are under way at once the same, of the free budget with nothing held: all of them count among the n
    else                                  the free budget

The free budget is the budget less the bytes held by graphs whose backward is still to come, less what sharded modules
(FSDP2) gather, and less the gradients to which further micro-batches of a pipeline add theirs.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.step_budget.calls_alike import allowance_of_alike, calls_alike
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator, share_budget
from remat_compiler.step_budget.size_plans import Continues, first_allowance
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.events import Call, Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.step import Step
from remat_compiler.units import told_apart

logger = logger_of(__name__)


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
        example_inputs: See `allowance_of_several`.
    """
    limited = request.budget_bytes is not None or request.fraction is not None
    if options.memory_budget.minimises or not limited:
        return None
    part = allowance_of_several(gm, options, request.budget_bytes or 0, coordinator, example_inputs, changing=False)
    if part is None:
        return None
    # The smallest peak if the part is too little: the complete step decides whether all fits.
    request = replace(request, take_smallest=True)
    # A fraction is one of the whole step's peak, which nobody knows yet; that of the graph's own peak is a guess.
    in_bytes = request.budget_bytes is not None
    return replace(request, budget_bytes=part.limit_bytes, between_bytes=part.between_bytes) if in_bytes else request


def part_of_fraction(
    gm: fx.GraphModule, options: RematOptions, request: PartitionRequest, coordinator: StepCoordinator[CompiledGraph]
) -> PartitionRequest | None:
    """The request if a fraction is too little for this graph alone: other graphs may make up for it in the step.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        request: The request if it were alone.
        coordinator: Follows the running step.

    Returns:
        `None` if no graphs came before this one and none are to be expected after it, or the budget is no fraction.
    """
    if options.memory_budget.part is None:
        return None
    # A graph that returns a loss is most likely the last one.
    if torch_compat.returns_scalar(gm) and not coordinator.open_calls_sharing(options):
        return None
    return replace(request, take_smallest=True)


def allowance_of_several(
    gm: fx.GraphModule,
    options: RematOptions,
    limit_bytes: int,
    coordinator: StepCoordinator[CompiledGraph],
    example_inputs: Sequence[Any] = (),
    *,
    changing: bool,
) -> Allowance | None:
    """The limits of a graph, at any of its sizes; `None` for a graph that stands alone.

    Args:
        gm: Dynamo's graph.
        options: The user's options.
        limit_bytes: The budget of the step.
        coordinator: Follows the running step.
        example_inputs: The graph's inputs, which tell whether its module is sharded.
        changing: Whether its sizes change.
    """
    continues, alike = continuation_of(gm, coordinator, changing=changing), calls_alike(example_inputs)
    if changing and coordinator.open_calls_sharing(options):
        gc.collect()  # calls of a refused step may be open only because of reference cycles
    if not coordinator.open_calls_sharing(options) and continues is Continues.NO and alike is None:
        return None
    free_bytes = limit_bytes - coordinator.held_bytes(options)
    if alike is None:
        return first_allowance(free_bytes, continues)
    if alike.overlap or not torch_compat.returns_scalar(gm):
        # What the first micro-batches hold is among the parts of all.
        return allowance_of_alike(limit_bytes if alike.overlap else free_bytes, alike)
    return first_allowance(free_bytes - alike.ahead_bytes, continues)


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
    step = coordinator.watch.current.step
    # A budget measured on the device ("auto") is less what the others hold already, and budgets of their own are not
    # shared: then the graph is judged by itself.
    in_bytes = options.memory_budget.named_bytes is not None
    if not in_bytes or not all(share_budget(graph.options, options) for graph in step.graphs):
        step = Step[CompiledGraph]()
    memories = [one for one in step.memories if one is not None]
    if len(memories) < len(step.calls):
        return  # nothing can be said without the memory of all of them
    new = len(memories)
    # One memory for each call, not for each graph: calls of one graph may be at different sizes.
    calls = [*(Call(i, call.passed) for i, call in enumerate(step.calls)), Call(new)]
    turns = [*step.turns, Event(Turn.FORWARD, new)]
    peak = whole_step_peak([*memories, memory], calls, turns, step.seen)
    if peak <= limit_bytes:
        return
    if options.on_infeasible != "min":
        reason = f"what {new} graphs hold that ran before in the step" if new else ""
        facts = BudgetFacts(asked=options.memory_budget.asked)
        raise InfeasibleBudget(limit_bytes, peak, reason=reason, facts=facts)
    logger.warning(
        "no plan fits memory_budget=%s: a graph of the step peaks at %s beside %s; training goes on",
        *told_apart(limit_bytes, peak),
        f"{new} other{'' if new == 1 else 's'}",
    )


def has_fixed_sizes(example_inputs: Sequence[Any]) -> bool:
    """Whether no size of the inputs may change from call to call."""
    # Dynamo hands over the sizes that change as arguments of their own, next to the tensors.
    sizes = [n for x in example_inputs for n in (x.shape if isinstance(x, torch.Tensor) else [x])]
    return not any(isinstance(n, torch.SymInt) for n in sizes)
