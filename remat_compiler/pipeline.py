"""Compile one graph under a budget: plan, compile, check the peak of what was emitted, adjust, report.

`search` decides what to try and what to keep; here is how one try is made, and what is stored of the last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.costs.table import cost_identity
from remat_compiler.cutter import PartitionRequest
from remat_compiler.graph_key import device_types, plan_key
from remat_compiler.options import BudgetKind, Environment, MemoryBudget, RematOptions
from remat_compiler.outcome import PART_ONLY, Outcome, earlier_outcome
from remat_compiler.partition import NoPlan
from remat_compiler.partitioner import RematPartitioner, collect
from remat_compiler.planned_graph import PlannedGraph, Recipe
from remat_compiler.progress import progress
from remat_compiler.runtime.dry_run import DryRun, dry_run
from remat_compiler.runtime.plan_store import PlanStore
from remat_compiler.runtime.workspace import WorkspaceTable
from remat_compiler.runtime.wrapper_capture import GraphRecorder
from remat_compiler.search import Attempt, Search
from remat_compiler.several_graphs import decide, first_request_of_several, has_fixed_sizes

logger = logging.getLogger(__name__)


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Callable[..., Any]:
    """Compile Dynamo's graph so that its training step stays within the budget; report what was decided.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    directory = None if environment.disable_cache else environment.cache_dir
    first = first_request(options, environment, example_inputs)
    costs = cost_identity(options.cost_model, device_types(gm, example_inputs), directory)
    store, key = PlanStore(directory), plan_key(gm, example_inputs, options, first.budget_bytes, costs)
    earlier = earlier_outcome(store.load(key))
    compiler = _Compiler(gm, example_inputs, WorkspaceTable(directory), costs, reported=earlier is not None)
    chooses_layout = torch_compat.has_convolutions(gm)

    def search(known: Attempt | None = None, limit: int | None = None) -> tuple[Attempt, int | None]:
        made = Search(compiler.run, options, chooses_layout=chooses_layout)
        return made.run(first if known is None else known.request, known, limit)

    outcome = Outcome(options, store, key)
    known = None if earlier is None else _again(compiler, earlier.request)
    context = torch_compat.saved_compilation() if has_fixed_sizes(example_inputs) else None
    anew = known is None and context is not None
    part = first_request_of_several(gm, options, first) if anew else None
    if earlier is not None and known is not None and known.trains and not known.partitions:
        attempt = known
        outcome.take_over(known, earlier)
    elif part is not None:
        attempt = compiler.run(part)
        outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    else:
        attempt, limit = search(known, None if earlier is None or known is None else earlier.limit_bytes)
        outcome.keep(attempt, limit)
    if not attempt.trains:
        return attempt.compiled
    recipe = None
    if context is not None:
        compiler.example_inputs = torch_compat.fake_twins(example_inputs)
        recipe = Recipe(compiler.run, search, context)
    whole = None if options.memory_budget.kind is BudgetKind.MIN else first.budget_bytes
    return PlannedGraph(
        attempt, options, whole, outcome.keep, recipe, decide, example_inputs, has_part=part is not None
    )


def _again(compiler: _Compiler, request: PartitionRequest) -> Attempt | None:
    """What comes of the last request of an earlier compilation; `None` where it is refused now."""
    try:
        return compiler.run(request)
    except NoPlan:
        return None


class _Compiler:
    """Compiles copies of one Dynamo graph."""

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        workspace: WorkspaceTable,
        costs: str,
        reported: bool,
    ) -> None:
        self.gm = gm
        self.costs = costs
        self.reported = reported
        self.example_inputs = example_inputs
        self.workspace = workspace

    def run(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """Compile and check; `NoPlan` when the planner refuses.

        Where a cache has the compiled code and nothing is known of its plan, it is planned again; the
        compiled kernels still come from the cache.
        """
        attempt = self._run(request, real)
        if self.reported or not attempt.trains or attempt.partitions:
            return attempt
        with torch_compat.partitioner_always_runs():
            return self._run(request, real)

    def _run(self, request: PartitionRequest, real: bool) -> Attempt:
        on_inductor = request.inner == "inductor"
        inner = torch_compat.compile_with_inductor if on_inductor else torch_compat.compile_with_interpreter
        real = real or not on_inductor
        limited = nullcontext() if real else torch_compat.code_generation_only()
        start = time.perf_counter()
        what = f"planning and {'compiling' if real else 'generating code'}"
        with progress(what), limited, collect(self.workspace) as partitions, GraphRecorder() as recorder:
            gm = torch_compat.copy_module(self.gm)
            compiled = inner(gm, self.example_inputs, RematPartitioner(request, self.costs))
        compiled_at = time.perf_counter()
        trains = bool(partitions or recorder.backward)
        check = DryRun(unknown="no backward")
        if trains:
            check = dry_run(compiled, self.example_inputs, recorder.graphs, self.workspace)
        logger.debug("compiled in %.1f s, checked in %.2f s", compiled_at - start, time.perf_counter() - compiled_at)
        return Attempt(request, compiled, real, trains, tuple(partitions), check)


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


def _first_budget(budget: MemoryBudget, example_inputs: Sequence[Any]) -> int | None:
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    if budget.kind is BudgetKind.MIN:
        return 1
    if budget.kind is BudgetKind.AUTO:
        return torch_compat.free_device_bytes(example_inputs)
    return None
