"""Compile one graph under a budget: plan, compile, check the peak of what was emitted, adjust.

    request ─► compile ─► dry run ─► fits, and uses the budget ─► keep
                  ▲           │
                  └───────────┘ over the budget: plan for less; far below it: plan for more

The first compilation is a real one, since it is nearly always the last.  Further tries only generate code,
which is enough for the dry run, and the one that is kept is then compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.adjust import adjusted, best_of, limit_bytes, over_budget
from remat_compiler.costs.table import cost_identity
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.graph_key import device_types, plan_key
from remat_compiler.options import BudgetKind, Environment, MemoryBudget, RematOptions, format_bytes
from remat_compiler.partition import NoPlan, Partition, PartitionRequest
from remat_compiler.partitioner import RematPartitioner, collect
from remat_compiler.progress import progress
from remat_compiler.reporting import checked_reports, make_reports, publish
from remat_compiler.runtime.dry_run import DryRun, dry_run
from remat_compiler.runtime.plan_store import PlanStore, StoredPlan
from remat_compiler.runtime.workspace import WorkspaceTable
from remat_compiler.runtime.wrapper_capture import GraphRecorder
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import simulate

logger = logging.getLogger(__name__)

MAX_TRIES = 4
"""How often a graph is planned at most until its checked peak fits and uses the budget."""
NEARLY_FITS = 1.08
"""A smallest peak up to this factor above the budget is emitted and checked before it is refused: what
Inductor emits may peak below what the simulator says."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try at a graph.

    Attributes:
        request: What was aimed for.
        compiled: The callable; it cannot be executed when `real` is false.
        real: Whether kernels were compiled.
        trains: Whether there is a backward.
        partitions: What was decided; empty without a backward, and when a compiler's cache was hit.
        check: The dry run of what was emitted.
    """

    request: PartitionRequest
    compiled: Callable[..., Any]
    real: bool
    trains: bool
    partitions: tuple[Partition, ...]
    check: DryRun


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
    stored = store.load(key)
    compiler = _Compiler(gm, example_inputs, WorkspaceTable(directory), costs, reported=stored is not None)
    known = None
    if stored is not None:
        known = _again(compiler, stored)
        if known is not None and known.trains and not known.partitions:
            publish(checked_reports(stored.reports, known.check), (), options)
            return known.compiled
    limit = None if stored is None or known is None else stored.limit_bytes
    attempt, limit = _search(compiler, options, first if known is None else known.request, known, limit)
    if attempt.trains:
        reports = make_reports(attempt.partitions, attempt.check, options, limit)
        publish(reports, attempt.partitions, options)
        store.save(key, StoredPlan(asdict(attempt.request), limit, tuple(r.to_json() for r in reports)))
    return attempt.compiled


def _again(compiler: _Compiler, stored: StoredPlan) -> Attempt | None:
    """What an earlier compilation ended with; `None` where it is refused now, or the stored request is broken."""
    try:
        request = PartitionRequest(**stored.request)
    except TypeError as error:
        logger.warning("ignored a stored plan whose request cannot be read (%s); it is planned again", error)
        return None
    try:
        return compiler.run(request)
    except NoPlan:
        return None


def _search(
    compiler: _Compiler,
    options: RematOptions,
    request: PartitionRequest,
    known: Attempt | None,
    limit: int | None,
) -> tuple[Attempt, int | None]:
    """Try until the checked peak fits the budget and uses it, at most `MAX_TRIES` times.

    Args:
        compiler: Compiles the graph.
        options: What the user asked for.
        request: What to aim for at first.
        known: What an earlier compilation ended with: the first try.
        limit: The budget in bytes, where it is known already.

    Returns:
        The try to keep, and the budget in bytes (`None` for none).
    """
    tries: list[Attempt] = []
    refusal: NoPlan | None = None
    while len(tries) < MAX_TRIES:
        try:
            attempt = known or compiler.run(request, real=not tries)
            known = None
        except NoPlan as refused:
            refusal = refused
            smallest = _smallest_request(request, refused, limit)
            if smallest is None:
                break
            request = smallest
            continue
        tries.append(attempt)
        if limit is None:
            limit = limit_bytes(options.memory_budget, attempt.partitions)
        following = adjusted(request, attempt.partitions, attempt.check, limit)
        if following is None:
            break
        request = following
    best = best_of(tries, limit)
    if best is None or over_budget(best.check, limit):
        best = _when_nothing_fits(best, refusal, limit, options)
    if not best.real:
        best = compiler.run(best.request)
        if over_budget(best.check, limit):
            best = _when_nothing_fits(best, refusal, limit, options)
    return best, limit


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
    )


def _first_budget(budget: MemoryBudget, example_inputs: Sequence[Any]) -> int | None:
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    if budget.kind is BudgetKind.MIN:
        return 1
    if budget.kind is BudgetKind.AUTO:
        return torch_compat.free_device_bytes(example_inputs)
    return None


def _smallest_request(request: PartitionRequest, refused: NoPlan, limit: int | None) -> PartitionRequest | None:
    """The request for the smallest peak, where what is emitted may still fit; `None` where that is hopeless."""
    budget_bytes = refused.problem.budget_bytes if limit is None else limit
    hopeful = request.inner == "inductor" and refused.result.peak_bytes <= NEARLY_FITS * budget_bytes
    if request.take_smallest or refused.result.plan is None or not hopeful:
        return None
    return replace(request, budget_bytes=refused.result.peak_bytes, fraction=None, take_smallest=True)


def _when_nothing_fits(
    best: Attempt | None, refusal: NoPlan | None, limit: int | None, options: RematOptions
) -> Attempt:
    """The smallest peak with a warning, where the options allow that; else the error."""
    if best is not None and limit is not None and options.on_infeasible == "min":
        logger.warning(
            "no plan fits memory_budget=%d bytes; training goes on at the smallest peak found, %s",
            limit,
            format_bytes(best.check.peak_bytes),
        )
        return best
    if best is None:
        assert refusal is not None
        raise infeasible(refusal, options) from refusal
    assert limit is not None
    peak = best.check.timeline[best.check.peak_index]
    raise InfeasibleBudget(limit, best.check.peak_bytes, peak.label, peak.text, _reason(options))


def infeasible(refusal: NoPlan, options: RematOptions) -> InfeasibleBudget:
    """The error that tells the user the smallest reachable peak, and what forces it."""
    problem, result = refusal.problem, refusal.result
    graph, plan = problem.graph, result.plan
    if plan is None:
        floor = peak_floor(graph, problem.costs)
        smallest, forced = floor.peak_bytes, None if floor.op is None else graph.ops[floor.op]
    else:
        timeline = simulate(graph, problem.costs, plan)
        smallest, forced = timeline.peak_bytes, graph.ops[plan.steps[timeline.peak_step]]
    name, source = ("", "") if forced is None else (forced.name, forced.source)
    return InfeasibleBudget(problem.budget_bytes, smallest, name, source, _reason(options))


def _reason(options: RematOptions) -> str:
    return "" if options.max_slowdown is None else f"max_slowdown={options.max_slowdown}"
