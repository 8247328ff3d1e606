"""Compile one graph under a budget: plan, compile, check the peak of what was emitted, adjust.

request ─► compile ─► dry run ─► fits and is used ─► keep
              ▲           │
              └───────────┘ over the budget: plan for less; far below it: plan for more
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.options import BudgetKind, Environment, MemoryBudget, RematOptions
from remat_compiler.partition import NoPlan, Partition, PartitionRequest
from remat_compiler.runtime.dry_run import DryRun, dry_run
from remat_compiler.partitioner import RematPartitioner, collect
from remat_compiler.runtime.workspace import WorkspaceTable
from remat_compiler.runtime.wrapper_capture import GraphRecorder
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import simulate

logger = logging.getLogger(__name__)

MAX_COMPILATIONS = 4
"""How often a graph is compiled at most until its checked peak fits and uses the budget."""
USED_ENOUGH = 0.95
"""A checked peak of at least this fraction of the budget is not improved on."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One compilation of a graph.

    Attributes:
        request: What was aimed for.
        compiled: The callable.
        partitions: What was decided; empty for a graph without a backward, or taken from a cache.
        check: The dry run of what was emitted.
    """

    request: PartitionRequest
    compiled: Callable[..., Any]
    partitions: tuple[Partition, ...]
    check: DryRun

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds."""
        return sum(p.cut.timeline.added_ns for p in self.partitions)


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Attempt:
    """Compile Dynamo's graph so that its training step stays within the budget.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    workspace = WorkspaceTable(None if environment.disable_cache else environment.cache_dir)
    request = first_request(options, environment, example_inputs)
    limit = options.memory_budget
    best: Attempt | None = None
    for _ in range(MAX_COMPILATIONS):
        try:
            attempt = _compile(gm, example_inputs, request, workspace)
        except NoPlan as refusal:
            if best is not None:
                break
            raise infeasible(limit, refusal, options) from refusal
        budget_bytes = _limit_bytes(attempt, limit)
        best = _better(best, attempt, budget_bytes)
        next_request = _adjusted(attempt, budget_bytes)
        if next_request is None:
            break
        request = next_request
    assert best is not None
    return best


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
        return 0
    if budget.kind is BudgetKind.AUTO:
        return torch_compat.free_device_bytes(example_inputs)
    return None


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], request: PartitionRequest, workspace: WorkspaceTable
) -> Attempt:
    """Compile a copy of `gm` once and check it."""
    partitioner = RematPartitioner(request)
    inner = torch_compat.compile_with_inductor if request.inner == "inductor" else torch_compat.compile_with_interpreter
    start = time.perf_counter()
    with collect(workspace) as partitions, GraphRecorder() as recorder:
        compiled = inner(torch_compat.copy_module(gm), example_inputs, partitioner)
    compiled_at = time.perf_counter()
    check = (
        dry_run(compiled, example_inputs, recorder.graphs, workspace) if partitions else DryRun(unknown="no backward")
    )
    logger.info("compiled in %.1f s, checked in %.2f s", compiled_at - start, time.perf_counter() - compiled_at)
    return Attempt(request, compiled, tuple(partitions), check)


def _limit_bytes(attempt: Attempt, budget: MemoryBudget) -> int | None:
    """The user's budget in bytes, once the step without a budget is known; `None` for no limit."""
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    if budget.kind is BudgetKind.FRACTION and attempt.partitions:
        return sum(p.cut.problem.budget_bytes for p in attempt.partitions)
    return None


def _better(best: Attempt | None, new: Attempt, budget_bytes: int | None) -> Attempt:
    """The attempt to keep: one that fits before one that does not, then the faster, then the smaller peak."""
    if best is None:
        return new

    def rank(attempt: Attempt) -> tuple[bool, int, int]:
        over = budget_bytes is not None and attempt.check.peak_bytes > budget_bytes
        return (over, attempt.check.peak_bytes if over else attempt.added_ns, attempt.check.peak_bytes)

    return min(best, new, key=rank)


def _adjusted(attempt: Attempt, budget_bytes: int | None) -> PartitionRequest | None:
    """What to aim for next; `None` when the attempt is good enough."""
    check = attempt.check
    if budget_bytes is None or check.unknown or not attempt.partitions:
        return None
    aimed = sum(p.cut.problem.budget_bytes for p in attempt.partitions)
    over = check.peak_bytes - budget_bytes
    if over <= 0 and (check.peak_bytes >= USED_ENOUGH * budget_bytes or attempt.added_ns == 0):
        return None
    planned = sum(p.cut.timeline.peak_bytes for p in attempt.partitions)
    # The emitted code peaks `bias` above what the simulator says; assume that it stays so nearby.
    bias = check.peak_bytes - planned
    target = budget_bytes - bias - (budget_bytes // 500 if over > 0 else 0)
    if target == aimed or target <= 0:
        return None
    return replace(attempt.request, budget_bytes=target, fraction=None)


def infeasible(budget: MemoryBudget, refusal: NoPlan, options: RematOptions) -> InfeasibleBudget:
    """The error that tells the user the smallest reachable peak, and what forces it."""
    problem, result = refusal.problem, refusal.result
    graph, plan = problem.graph, result.plan
    if plan is None:
        floor = peak_floor(graph, problem.costs)
        forced = graph.ops[floor.op] if floor.op is not None else None
        smallest = floor.peak_bytes
    else:
        timeline = simulate(graph, problem.costs, plan)
        forced = graph.ops[plan.steps[timeline.peak_step]]
        smallest = timeline.peak_bytes
    reason = "" if options.max_slowdown is None else f"max_slowdown={options.max_slowdown}"
    return InfeasibleBudget(
        problem.budget_bytes, smallest, forced.name if forced else "", forced.source if forced else "", reason
    )


def needs_gradients(example_inputs: Sequence[Any]) -> bool:
    """Whether the graph is compiled for training."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
