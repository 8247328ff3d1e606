"""A graph whose sizes change from call to call: planned for those of the first call, and for others as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.outcome import PART_ONLY
from remat_compiler.compilation.search import SearchGoal
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.dispatched import dispatched
from remat_compiler.dynamic_shapes.room_by_size import SharedRoom
from remat_compiler.dynamic_shapes.variant_context import VariantContext
from remat_compiler.dynamic_shapes.variant_store import VariantStore
from remat_compiler.graphs.question import Question
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.log import logger_of
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.first_step import allowance_of_several, check_first_step, continuation_of
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_budget.size_plans import SizePlans
from remat_compiler.step_model.allowance import Allowance

logger = logger_of(__name__)


def at_changing_sizes(question: Question) -> Callable[..., Any]:
    """Plan the graph for the sizes of the first call, and for others as they come; see `variant_maker`.

    Raises:
        InfeasibleBudget: No plan fits at the first sizes, and the options do not say to take the smallest peak.
    """
    gm, options, symbols = question.compiler.gm, question.options, question.symbols
    variants = VariantStore(question.directory, question.key.digest)
    # Larger sizes of an earlier process if their plan recomputes nothing: its plan and kernels are in the caches.
    sizes = variants.for_first([symbol.hint for symbol in symbols], [symbol.upper for symbol in symbols])
    first = replace(_served(question), sizes=tuple(zip((symbol.name for symbol in symbols), sizes)))
    start = time.perf_counter()
    whole = first.budget_bytes or 0
    part = allowance_of_several(gm, options, whole, COORDINATOR, question.inputs, changing=True)
    if part is not None and first.offload_bytes:
        # What graphs move together at any of their sizes, no plan of one of them knows.
        logger.warning("offload_budget has no effect on one of several graphs whose sizes change: it moves nothing")
        first = first.without_transfers
    attempt, limit = _searched(question, first, part)
    compilation = torch_compat.saved_compilation()
    serves_all = compilation is not None and not attempt.check.unknown and bool(attempt.partitions)
    if first.offload_bytes and not serves_all:
        # One plan serves all sizes, and larger ones would move more than there is room for.
        attempt, limit = _searched(question, first.without_transfers, part)
    seconds = time.perf_counter() - start
    question.outcome.keep(attempt, limit, "" if part is None else PART_ONLY, final=part is None)
    if not attempt.trains:
        return question.untrained(attempt)
    plans = GraphPlans()
    if compilation is None or not serves_all:
        logger.warning(
            "memory_budget is kept for the sizes of the first call only, and one plan serves all sizes: %s",
            attempt.check.unknown or "the graph is not compiled by Dynamo",
        )
    else:
        context = _context(question, first, compilation, variants)
        dispatch = _dispatch(context, question, attempt, seconds, part)
        # Asked again here, during the compilation: afterwards Dynamo does not tell which function it is.
        continues = continuation_of(gm, COORDINATOR, changing=True)
        plans = SizePlans(dispatch, attempt, symbols, continues, context.input_bytes)
        attempt = replace(attempt, compiled=dispatch)
    return CompiledGraph(
        *(attempt, options, first.budget_bytes, question.outcome.keep, plans, COORDINATOR, question.inputs),
        has_part=part is not None and plans.at_all_sizes,
        reports=lambda: question.outcome.reports,
    )


def _served(question: Question) -> PartitionRequest:
    """The first request, without what does not hold at changing sizes."""
    if question.first.budget_of != "reserved":
        return question.first
    logger.warning('budget_of="reserved" holds at fixed sizes; a graph whose sizes change is kept by what is allocated')
    return replace(question.first, budget_of="allocated")


def _searched(question: Question, first: PartitionRequest, part: Allowance | None) -> tuple[Attempt, int | None]:
    """The compilation for the first call: within a part of the budget, or at its smallest peak if the step has room.

    Raises:
        InfeasibleBudget: Nothing fits, or the smallest peak exceeds the budget next to the earlier graphs of the step.
    """
    if part is None:
        return question.search.run(SearchGoal(first))
    request = replace(first, budget_bytes=part.limit_bytes, between_bytes=part.between_bytes)
    attempt, limit = question.search.run(SearchGoal(request, limit_bytes=part.limit_bytes, takes_smallest=True))
    memory = attempt.check.memory
    if attempt.trains and memory is not None:
        check_first_step(memory, question.options, first.budget_bytes or 0, COORDINATOR)
    return attempt, limit


def _context(
    question: Question, first: PartitionRequest, compilation: Callable[[], Any], variants: VariantStore
) -> VariantContext:
    """How later variants are compiled: from the traced inputs, which hold no memory and have symbols for sizes."""
    compiler, room = question.compiler, None
    if first.place is not None and first.offload_bytes:
        room = SharedRoom(first.place, first.offload_bytes, question.on_gpu)
    return VariantContext(
        search=replace(question.search, compile_=compiler.with_inputs(compiler.traced).run),
        request=first,
        symbols=question.symbols,
        dynamo_context=compilation,
        assumptions=torch_compat.LaterAssumptions(),
        session=compiler.session,
        keep=question.outcome.add,
        store=variants,
        input_bytes=partial(_input_bytes, compiler.traced, [symbol.name for symbol in question.symbols]),
        room=room,
    )


def _dispatch(
    context: VariantContext, question: Question, attempt: Attempt, seconds: float, part: Allowance | None
) -> Dispatch:
    """What runs the calls, limited to `part` until the step is known."""
    # The part may have been too little even for the smallest peak, which the step has room for.
    if part is not None and attempt.check.memory is not None:
        part = part.grown_to(attempt.check.memory)
    return dispatched(context, question.options, attempt, seconds, part)


def _input_bytes(traced: Sequence[Any], names: Sequence[str], positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Bytes of the inputs at given positions, at given sizes."""
    with torch_compat.sizes_at(dict(zip(names, sizes))):
        return sum(torch_compat.size_hint(traced[i].numel()) * traced[i].element_size() for i in positions)
