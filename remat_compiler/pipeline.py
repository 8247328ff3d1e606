"""Compile one graph under a budget: plan, compile, check the peak of what was emitted, adjust, report.

`compilation.search` decides which requests to try and which try to keep; this module connects all that takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.compilation.gathers import GatheringSearch
from remat_compiler.compilation.graph_key import devices_of, parameter_shapes, plan_key
from remat_compiler.compilation.lateness import told_if_late
from remat_compiler.compilation.offloading import place_of, usable_bytes, with_room
from remat_compiler.compilation.outcome import PART_ONLY, Outcome, StoredOutcome
from remat_compiler.compilation.refusal import warn_of_smallest
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.compilation.unusual_devices import tell_of_devices
from remat_compiler.costs.table import cost_identity
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.distributed.agreement import Agreement, Alone, Point, current_agreement
from remat_compiler.distributed.by_store import StoreAgreement
from remat_compiler.dry_run.dry_run import MORE_BLOCKS_BYTES, dry_run
from remat_compiler.dry_run.fake_inputs import counted_device_type
from remat_compiler.dynamic_shapes.dispatched import dispatched
from remat_compiler.dynamic_shapes.variant_context import VariantContext
from remat_compiler.dynamic_shapes.variant_store import VariantStore
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.memory_budget import BudgetKind, MemoryBudget
from remat_compiler.options import Environment, RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.partition.session import Session
from remat_compiler.plan_cache.planner_loops import tell_of_compiling
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.step_budget.behind_the_plan import BehindThePlan
from remat_compiler.step_budget.beside_the_plan import Untrained
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.dynamic_graph import DynamicGraph
from remat_compiler.step_budget.first_step import (
    allowance_of_several,
    check_first_step,
    continuation_of,
    first_request_of_several,
    has_fixed_sizes,
    part_of_fraction,
)
from remat_compiler.step_budget.recompile_context import RecompileContext
from remat_compiler.step_budget.replan import decide

logger = logger_of(__name__)

COORDINATOR: StepCoordinator[CompiledGraph] = StepCoordinator(torch_compat.reserving_no_more()(told_if_late()(decide)))
"""Follows the training steps of this process."""
_BEHIND = BehindThePlan(lambda: COORDINATOR.watch.here.open)


def steps_are_known() -> bool:
    """Whether all graphs that ran have their share of the budget; else their reports are of what they have so far."""
    return not COORDINATOR.unsettled_graphs()


@torch_compat.reserving_no_more()
@told_if_late()
def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Callable[..., Any]:
    """Compile Dynamo's graph so that its training step stays within the budget; report the decisions.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    tell_of_compiling()
    torch_compat.keep_first_call_on_fakes()
    if options.on_infeasible != "min" and torch_compat.sizes_depend_on_data(gm):
        # Plans take such sizes for as large as they may be, so a step that they refuse may fit.
        options = replace(options, on_infeasible="min")
    directory = None if environment.disable_cache else environment.cache_dir
    agreement = _agreement()
    first = first_request(options, environment, example_inputs)
    if options.memory_budget.kind is BudgetKind.AUTO and first.budget_bytes is not None:
        asked = plan_key(gm, example_inputs, options, None, "")
        first = replace(first, budget_bytes=agreement.smallest(first.budget_bytes, lambda: asked.digest))
    symbols = changing_sizes(options, first, example_inputs)
    devices = devices_of(gm, example_inputs)
    tell_of_devices(devices)
    kinds = {device.type for device in devices}
    place = place_of(options, kinds)
    costs = cost_identity(options.cost_model, kinds, directory, place)
    if place is not None and not symbols:
        first = replace(first, offload_bytes=usable_bytes(place, options.offload_budget), offload_place=str(place))
    elif place is not None:
        logger.warning("offload_budget has no effect on a graph whose sizes change: nothing is moved off the device")
    traced = torch_compat.symbolic_inputs(gm, example_inputs) if symbols else []
    key = plan_key(gm, traced or example_inputs, options, first.budget_bytes, costs)
    # If sizes change, one outcome says nothing of other sizes: the sizes of variants are kept instead (`VariantStore`),
    # and their plans are in the plan cache.
    workspace = WorkspaceTable(directory)
    outcome = Outcome(options, None if symbols else directory, key, workspace)
    session = Session(
        directory,
        workspace,
        parameter_shapes(gm, example_inputs),
        torch_compat.input_sources(gm),
        repr((key.options, key.versions)),
        agreement,
    )
    # The caches of ranks may differ.
    earlier = agreement.agree(Point.OUTCOME, outcome.earlier(first), lambda: key.digest)
    compiler = Compiler(gm, example_inputs, traced, session, costs, earlier is not None, options.inductor)
    if symbols:
        return _for_all_sizes(compiler, options, first, symbols, outcome, VariantStore(directory, key.digest))
    return _for_these_sizes(compiler, options, first, earlier, outcome)


def _agreement() -> Agreement:
    """How the ranks of this job come to the same plans."""
    given, ranks = current_agreement(), torch_compat.ranks()
    if given is not None:
        return given
    return Alone() if ranks is None else _by_store(ranks)


@lru_cache(maxsize=1)
def _by_store(ranks: torch_compat.Ranks) -> StoreAgreement:
    """One for all graphs of a job: it remembers whom it waited for in vain."""
    return StoreAgreement(ranks.store, ranks.rank, ranks.size, torch.__version__)


def _for_these_sizes(
    compiler: Compiler, options: RematOptions, first: PartitionRequest, earlier: StoredOutcome | None, outcome: Outcome
) -> Callable[..., Any]:
    """Plan the graph for the sizes of its inputs.  The budget is enforced for these sizes only."""
    inputs, search = compiler.example_inputs, _search(compiler, options)
    saved, fixed = torch_compat.saved_compilation(), has_fixed_sizes(inputs)
    # What the graphs of a step move together, no plan of one of them knows: their room is shared with the budget.
    part, last, in_part = None, None, first.without_transfers
    # Without Dynamo's context it could not be compiled again, nor if its sizes change.
    context = saved if fixed else None
    if context is not None:
        part = first_request_of_several(compiler.gm, options, in_part, COORDINATOR, inputs)
    if saved is not None:
        # A fraction of this graph's own peak may be infeasible, and that of the step's peak not.
        last = part_of_fraction(compiler.gm, options, in_part, COORDINATOR)
    known = None
    # A fraction of the peak of several graphs is no answer for one that stands alone.
    of_several = earlier is not None and first.fraction is not None and earlier.of_several
    if earlier is not None and (part is not None or last is not None or not of_several):
        known = _again(compiler, earlier, options)
    # An earlier outcome knows the graph's own budget already.
    part, refused = part if known is None else None, None
    if earlier is not None and known is not None and known.trains and not known.partitions:
        # The code came from the inner compiler's cache, so nothing was planned: the stored reports stand for it.
        attempt = replace(known, native=earlier.native)
        outcome.take_over(attempt, earlier)
    elif part is not None:
        attempt = search.one_try(part)
        search.settled(attempt)
        outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    else:
        try:
            goal = SearchGoal(first)
            if earlier is not None and known is not None:
                goal = SearchGoal(known.request, known, earlier.limit_bytes)
            attempt, limit = search.run(goal)
            if earlier is not None and attempt.native is None:
                attempt = replace(attempt, native=earlier.native)
            # Until its step is known, what is kept says that other graphs are in it.
            outcome.keep(attempt, limit, final=known is None or not of_several)
        except InfeasibleBudget as error:
            # A copy has no traceback, whose frames would keep all of the search alive.
            part, refused = last, copy(error)
            if part is None:
                raise
            logger.info("more graphs may follow, with which the step may fit: %s", error)
            attempt = search.one_try(part)
            search.settled(attempt)
            outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    if not attempt.trains:
        return _untrained(compiler, attempt)
    recompile, on_gpu = None, counted_device_type(inputs) != "cpu"
    if context is not None:
        # Twins without data: the real inputs must not stay alive until the step is known.
        again = replace(search, compile_=compiler.with_inputs(torch_compat.fake_twins(inputs)).run)
        recompile = RecompileContext(again, SearchGoal(first), context, on_gpu)
    # The outcome tells by the attempt whether it has reported it.
    attempt = outcome.attempt = with_room(attempt, 1, on_gpu, outcome.reports, first.offload_bytes)
    whole = None if options.memory_budget.kind is BudgetKind.MIN else first.budget_bytes
    return CompiledGraph(
        *(attempt, options, whole, outcome.keep, recompile, COORDINATOR, inputs),
        has_part=part is not None,
        of_several=of_several and known is not None and context is not None,
        refused_alone=refused,
        reports=lambda: outcome.reports,
    )


def _untrained(compiler: Compiler, attempt: Attempt) -> Callable[..., Any]:
    """The compiled graph without gradients, watched if other graphs follow it in a step."""
    # Its results are inputs of the next graph only if there is one.
    if not torch_compat.ends_at_graph_break(compiler.gm):
        return attempt.compiled
    check = dry_run(attempt.compiled, compiler.example_inputs, attempt.graphs, compiler.session.workspace)
    return Untrained(attempt.compiled, check.peak_bytes)


def _for_all_sizes(
    compiler: Compiler,
    options: RematOptions,
    first: PartitionRequest,
    symbols: tuple[torch_compat.InputSymbol, ...],
    outcome: Outcome,
    variants: VariantStore,
) -> Callable[..., Any]:
    """Plan the graph for the sizes of the first call, and for others as they come; see `variant_maker`."""
    if options.budget_of == "reserved":
        logger.warning(
            'budget_of="reserved" holds at fixed sizes; a graph whose sizes change is kept by what is allocated'
        )
        first = replace(first, budget_of="allocated")
    inputs, search = compiler.example_inputs, _search(compiler, options)
    # Larger sizes of an earlier process if their plan recomputes nothing: its plan and kernels are in the caches.
    sizes = variants.for_first([symbol.hint for symbol in symbols], [symbol.upper for symbol in symbols])
    first = replace(first, sizes=tuple(zip((symbol.name for symbol in symbols), sizes)))
    start = time.perf_counter()
    part = allowance_of_several(compiler.gm, options, first.budget_bytes or 0, COORDINATOR, inputs)
    if part is None:
        attempt, limit = search.run(SearchGoal(first))
    else:
        attempt, limit = _in_part(search, first, part)
    seconds = time.perf_counter() - start
    outcome.keep(attempt, limit, "" if part is None else PART_ONLY, final=part is None)
    if not attempt.trains:
        return _untrained(compiler, attempt)
    changing, memory = None, attempt.check.memory
    compilation = torch_compat.saved_compilation()
    if compilation is None or attempt.check.unknown or not attempt.partitions:
        logger.warning(
            "memory_budget is kept for the sizes of the first call only, and one plan serves all sizes: %s",
            attempt.check.unknown or "the graph is not compiled by Dynamo",
        )
    else:
        # The part may have been too little even for the smallest peak, which the step has room for.
        if part is not None and memory is not None:
            part = part.grown_to(memory)
        # Later variants are compiled from the traced inputs, which hold no memory and have symbols for sizes.
        context = VariantContext(
            search=replace(search, compile_=compiler.with_inputs(compiler.traced).run),
            request=first,
            symbols=symbols,
            dynamo_context=compilation,
            assumptions=torch_compat.LaterAssumptions(),
            session=compiler.session,
            keep=outcome.add,
            store=variants,
            input_bytes=partial(_input_bytes, compiler.traced, [symbol.name for symbol in symbols]),
        )
        dispatch = dispatched(context, options, attempt, seconds, part)
        # Asked again here, during the compilation: afterwards Dynamo does not tell which function it is.
        changing = DynamicGraph(
            dispatch, attempt, symbols, continuation_of(compiler.gm, COORDINATOR, changing=True), context.input_bytes
        )
        attempt = replace(attempt, compiled=dispatch)
    shared, whole = part is not None and changing is not None, first.budget_bytes
    return CompiledGraph(
        attempt,
        options,
        whole,
        outcome.keep,
        None,
        COORDINATOR,
        inputs,
        has_part=shared,
        changing=changing,
        reports=lambda: outcome.reports,
    )


def _input_bytes(traced: Sequence[Any], names: Sequence[str], positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Bytes of the inputs at given positions, at given sizes."""
    with torch_compat.sizes_at(dict(zip(names, sizes))):
        return sum(torch_compat.size_hint(traced[i].numel()) * traced[i].element_size() for i in positions)


def _in_part(search: BudgetSearch, first: PartitionRequest, part: Allowance) -> tuple[Attempt, int | None]:
    """Compile a graph of changing sizes within a part of the budget, or at its smallest peak if the step has room.

    Raises:
        InfeasibleBudget: The smallest peak exceeds the budget next to the earlier graphs of the step.
    """
    request = replace(first, budget_bytes=part.limit_bytes, between_bytes=part.between_bytes)
    goal = SearchGoal(request, limit_bytes=part.limit_bytes, takes_smallest=True)
    attempt, limit = search.run(goal)
    memory = attempt.check.memory
    if attempt.trains and memory is not None:
        check_first_step(memory, search.options, first.budget_bytes or 0, COORDINATOR)
    return attempt, limit


def _search(compiler: Compiler, options: RematOptions) -> GatheringSearch:
    session = compiler.session
    chooses_layout = torch_compat.has_convolutions(compiler.gm) or torch_compat.may_pad_products(compiler.gm)
    trains = torch_compat.needs_gradients(compiler.example_inputs)
    in_blocks = counted_device_type(compiler.example_inputs) == "cuda" and not segments_expand()
    more_bytes = MORE_BLOCKS_BYTES if in_blocks else 0
    agreement = session.agreement.gathers
    return GatheringSearch(compiler.run, options, chooses_layout, trains, more_bytes, agreement, session.program)


def _again(compiler: Compiler, earlier: StoredOutcome, options: RematOptions) -> Attempt | None:
    """The compilation by an earlier outcome's request; `None` if it is refused by now, or over the budget."""
    try:
        again = compiler.run(earlier.request)
    except NoPlan:
        return None
    limit = earlier.limit_bytes
    if limit is None or not again.is_over(limit):
        return again
    # Planned anew: whether other graphs may follow, with which it may fit, decides what is refused, and when.
    if options.on_infeasible != "min":
        return None
    # With partitions, the planner ran: the search goes on from this try, and warns itself.
    if not again.partitions:
        warn_of_smallest(limit, again.check.needed_bytes)
    return again


def first_request(options: RematOptions, environment: Environment, example_inputs: Sequence[Any]) -> PartitionRequest:
    """The first request for a graph."""
    budget = options.memory_budget
    return PartitionRequest(
        budget_bytes=_first_budget(budget, example_inputs),
        fraction=budget.fraction if budget.kind is BudgetKind.FRACTION else None,
        take_smallest=budget.kind is BudgetKind.MIN or options.on_infeasible == "min",
        planner=options.planner,
        cost_model=options.cost_model,
        inner=options.inner,
        max_slowdown=options.max_slowdown,
        time_limit=options.time_limit,
        verify=environment.verify,
        budget_of=options.budget_of,
        layout=options.layout,
        inplace_buffers=options.inplace_buffers,
        chunks=options.chunks,
        # The inner compiler's own layout takes copies of weights: never the smallest peak.
        free_layout=budget.kind is not BudgetKind.MIN,
    )


def changing_sizes(
    options: RematOptions, request: PartitionRequest, example_inputs: Sequence[Any]
) -> tuple[torch_compat.InputSymbol, ...]:
    """The symbolic sizes that variants of the graph are to serve: all of them under a budget in bytes, else none.

    A fraction of the peak without a budget grows with the sizes; one plan has about the same fraction at all of them.
    """
    limited = options.memory_budget.kind in (BudgetKind.BYTES, BudgetKind.AUTO) and request.budget_bytes is not None
    return torch_compat.input_symbols(example_inputs) if limited else ()


def _first_budget(budget: MemoryBudget, example_inputs: Sequence[Any]) -> int | None:
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    if budget.kind is BudgetKind.MIN:
        return 1  # no plan fits, so planners answer with their smallest peak
    if budget.kind is BudgetKind.AUTO:
        return torch_compat.free_device_bytes(example_inputs)
    return None
