"""Compile one graph under a budget: plan, compile, check the peak of what was emitted, adjust, report.

`search` decides what to try and what to keep; here is how one try is made, and what is stored of the last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.compilation.graph_key import device_types, plan_key
from remat_compiler.compilation.outcome import PART_ONLY, Earlier, Outcome
from remat_compiler.compilation.search import Search, warn_of_smallest
from remat_compiler.costs.table import cost_identity
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dynamic_shapes.variant_maker import Workshop, dispatched
from remat_compiler.dynamic_shapes.variant_store import VariantStore
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.options import BudgetKind, Environment, MemoryBudget, RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.plan_cache.planner_loops import tell_of_compiling
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.step_budget.beside_the_plan import Untrained
from remat_compiler.step_budget.compiled_graph import PlannedGraph, Recipe
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.dynamic_graph import ChangingGraph
from remat_compiler.step_budget.first_step import (
    allowance_of_several,
    check_first_step,
    first_request_of_several,
    has_fixed_sizes,
    onward_of,
    part_of_fraction,
)
from remat_compiler.step_budget.replan import decide

logger = logging.getLogger(__name__)

COORDINATOR: StepCoordinator[PlannedGraph] = StepCoordinator(decide)
"""Knows of the steps of this process."""


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Callable[..., Any]:
    """Compile Dynamo's graph so that its training step stays within the budget; report what was decided.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    tell_of_compiling()
    directory = None if environment.disable_cache else environment.cache_dir
    first = first_request(options, environment, example_inputs)
    symbols = changing_sizes(options, first, example_inputs)
    costs = cost_identity(options.cost_model, device_types(gm, example_inputs), directory)
    traced = torch_compat.symbolic_inputs(gm, example_inputs) if symbols else []
    key = plan_key(gm, traced or example_inputs, options, first.budget_bytes, costs)
    # Where sizes change, what variants were planned for is kept, and their plans are in the plan cache.
    outcome = Outcome(options, None if symbols else directory, key)
    earlier = outcome.earlier(first)
    workspace, reported = WorkspaceTable(directory), earlier is not None
    compiler = Compiler(gm, example_inputs, traced, workspace, costs, reported, options.inductor)
    if symbols:
        return _for_all_sizes(compiler, options, first, symbols, outcome, VariantStore(directory, key.digest))
    return _for_these_sizes(compiler, options, first, earlier, outcome)


def _for_these_sizes(
    compiler: Compiler, options: RematOptions, first: PartitionRequest, earlier: Earlier | None, outcome: Outcome
) -> Callable[..., Any]:
    """The graph planned for the sizes of its inputs; where they may change, no budget in bytes holds at others."""
    inputs = compiler.example_inputs

    def search(known: Attempt | None = None, limit: int | None = None) -> tuple[Attempt, int | None]:
        return _searched(compiler, options, first if known is None else known.request, known, limit)

    known = None if earlier is None else _again(compiler, earlier, options)
    context = torch_compat.saved_compilation() if has_fixed_sizes(inputs) else None
    anew = known is None and context is not None
    part = first_request_of_several(compiler.gm, options, first, COORDINATOR) if anew else None
    if earlier is not None and known is not None and known.trains and not known.partitions:
        attempt = known
        outcome.take_over(known, earlier)
    elif part is not None:
        attempt = compiler.run(part)
        outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    else:
        try:
            attempt, limit = search(known, None if earlier is None or known is None else earlier.limit_bytes)
            outcome.keep(attempt, limit)
        except InfeasibleBudget as error:
            part = part_of_fraction(compiler.gm, options, first) if context is not None else None
            if part is None:
                raise
            logger.info("more graphs may follow, with which the step may fit: %s", error)
            attempt = compiler.run(part)
            outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    if not attempt.trains:
        return Untrained(attempt.compiled) if torch_compat.ends_at_graph_break(compiler.gm) else attempt.compiled
    recipe = None
    if context is not None:
        compiler = compiler.with_inputs(torch_compat.fake_twins(inputs))
        recipe = Recipe(compiler.run, search, context)
    whole = None if options.memory_budget.kind is BudgetKind.MIN else first.budget_bytes
    return PlannedGraph(attempt, options, whole, outcome.keep, recipe, COORDINATOR, inputs, has_part=part is not None)


def _for_all_sizes(
    compiler: Compiler,
    options: RematOptions,
    first: PartitionRequest,
    symbols: tuple[torch_compat.InputSymbol, ...],
    outcome: Outcome,
    variants: VariantStore,
) -> Callable[..., Any]:
    """The graph planned for the sizes of the first call, and for others as they come; see `variant_maker`."""
    inputs = compiler.example_inputs
    sizes = variants.for_first([symbol.hint for symbol in symbols], [symbol.upper for symbol in symbols])
    first = replace(first, sizes=tuple(zip((symbol.name for symbol in symbols), sizes)))
    start = time.perf_counter()
    part = allowance_of_several(compiler.gm, options, first.budget_bytes or 0, COORDINATOR)
    attempt, limit = _searched(compiler, options, first) if part is None else _in_part(compiler, options, first, part)
    seconds = time.perf_counter() - start
    outcome.keep(attempt, limit, "" if part is None else PART_ONLY, final=part is None)
    if not attempt.trains:
        return Untrained(attempt.compiled) if torch_compat.ends_at_graph_break(compiler.gm) else attempt.compiled
    changing, memory = None, attempt.check.memory
    compilation = torch_compat.saved_compilation()
    if compilation is None or attempt.check.unknown or not attempt.partitions:
        logger.warning(
            "memory_budget is kept for the sizes of the first call only, and one plan serves all sizes: %s",
            attempt.check.unknown or "the graph is not compiled by Dynamo",
        )
    else:
        if part is not None and memory is not None:
            part = part.grown_to(memory)
        compiler = compiler.with_inputs(compiler.traced)
        workshop = Workshop(
            compile_=compiler.run,
            search=lambda request: _within_share(compiler, options, request, first.budget_bytes or 0),
            request=first,
            symbols=symbols,
            context=compilation,
            assumptions=torch_compat.LaterAssumptions(),
            workspace=compiler.workspace,
            keep=outcome.add,
            store=variants,
            input_bytes=partial(_input_bytes, compiler.traced, [symbol.name for symbol in symbols]),
        )
        dispatch = dispatched(workshop, options, attempt, seconds, part)
        changing = ChangingGraph(
            dispatch, attempt, symbols, onward_of(compiler.gm, COORDINATOR, changing=True), workshop.input_bytes
        )
        attempt = replace(attempt, compiled=dispatch)
    shared, whole = part is not None and changing is not None, first.budget_bytes
    return PlannedGraph(
        attempt, options, whole, outcome.keep, None, COORDINATOR, inputs, has_part=shared, changing=changing
    )


def _input_bytes(traced: Sequence[Any], names: Sequence[str], positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Bytes of the inputs at some positions, at given sizes."""
    with torch_compat.sizes_at(dict(zip(names, sizes))):
        return sum(torch_compat.size_hint(traced[i].numel()) * traced[i].element_size() for i in positions)


def _in_part(
    compiler: Compiler, options: RematOptions, first: PartitionRequest, part: Allowance
) -> tuple[Attempt, int | None]:
    """A graph of changing sizes within a part of the budget, or at its smallest peak, as long as the step has room."""
    request = replace(first, budget_bytes=part.limit_bytes, between_bytes=part.between_bytes)
    try:
        attempt, _ = _searched(compiler, replace(options, on_infeasible="error"), request, limit=part.limit_bytes)
    except InfeasibleBudget:
        attempt = compiler.run(replace(request, take_smallest=True))
    memory = attempt.check.memory
    if attempt.trains and memory is not None:
        check_first_step(memory, options, first.budget_bytes or 0, COORDINATOR)
    return attempt, part.limit_bytes


def _within_share(compiler: Compiler, options: RematOptions, request: PartitionRequest, whole_bytes: int) -> Attempt:
    """What fits the request's budget, which may be a share of the whole."""
    limit = request.budget_bytes
    try:
        return _searched(compiler, options, request, limit=limit)[0]
    except InfeasibleBudget as error:
        if limit is None or (limit == whole_bytes and not request.between_bytes):
            raise
        missing = error.smallest_peak_bytes - limit
        reason = f"{error.reason}, " if error.reason else ""
        reason += f"where other graphs of the step take all but {limit} bytes"
        least = whole_bytes + missing
        raise InfeasibleBudget(whole_bytes, least, error.forced_by, error.source, reason, error.facts) from error


def _searched(
    compiler: Compiler,
    options: RematOptions,
    request: PartitionRequest,
    known: Attempt | None = None,
    limit: int | None = None,
) -> tuple[Attempt, int | None]:
    """What fits the request's budget and uses it, see `search.Search`."""
    search = Search(compiler.run, options, chooses_layout=torch_compat.has_convolutions(compiler.gm))
    return search.run(request, known, limit)


def _again(compiler: Compiler, earlier: Earlier, options: RematOptions) -> Attempt | None:
    """What comes of an earlier compilation's last request; `None` where that is refused now, or over the budget."""
    try:
        again = compiler.run(earlier.request)
    except NoPlan:
        return None
    limit = earlier.limit_bytes
    # Where the planner ran, a search goes on from here.
    if limit is None or again.partitions or not again.is_over(limit):
        return again
    if options.on_infeasible != "min":
        return None
    warn_of_smallest(limit, again.check.needed_bytes)
    return again


def first_request(options: RematOptions, environment: Environment, example_inputs: Sequence[Any]) -> PartitionRequest:
    """What to aim for at first."""
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
        return 1
    if budget.kind is BudgetKind.AUTO:
        return torch_compat.free_device_bytes(example_inputs)
    return None
