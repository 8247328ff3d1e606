"""Make the report of a planned graph from the graph, the plan and its simulation."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.ir.graph import Phase, StorageId, StorageKind
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import UNLIMITED_BYTES, RematProblem
from remat_compiler.report.curve import MemoryCurve, StepCurves, memory_curve
from remat_compiler.report.decisions import decisions, origin_of
from remat_compiler.report.plan_report import ChunkedRegion, LiveStorage, Origin, PeakPoint, PlanReport, StageTime
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.transfers import moved_bytes


def build_report(
    problem: RematProblem,
    result: PlanResult,
    *,
    graph_name: str,
    joint_nodes: int,
    inner: str,
    before: MemoryTimeline | None = None,
    before_curve: MemoryCurve | None = None,
    peak_before_bytes: int | None = None,
    checked_peak_bytes: int | None = None,
    smallest_peak_bytes: int | None = None,
    stages: Sequence[tuple[str, float]] = (),
    notes: Sequence[str] = (),
    chunked: Sequence[ChunkedRegion] = (),
    chunks_ns: int = 0,
) -> PlanReport:
    """The report of `result`, which must hold a valid plan of `problem`.

    Args:
        problem: The question; its `reference` is the step without a budget.
        result: The answer that is applied.
        graph_name: Name of the graph within its process.
        joint_nodes: Nodes of the joint graph before contraction.
        inner: Inner compiler.
        before: Timeline of the step without a budget; simulated from `problem.reference` when `None`.
        before_curve: The same for the picture, if `before` is given.
        peak_before_bytes: Peak of the step without a budget, if it is known more precisely than by simulation.
        checked_peak_bytes: Peak of the code that the inner compiler emitted, if known.
        smallest_peak_bytes: Smallest peak that a planner found, if one was sought.
        stages: Name and seconds of each stage.
        notes: Sentences for the user.
        chunked: Losses that are computed in chunks.
        chunks_ns: Time that the chunks add to the operators of the step, each executed once.
    """
    if result.plan is None:
        raise ValueError(f"a report needs a plan, got a result without one (status {result.status.value})")
    graph, costs, plan = problem.graph, problem.costs, result.plan
    after = simulate(graph, costs, plan)
    # Without a reference the plan is its own comparison: nothing was saved or lost.
    if before is None:
        before = after if problem.reference is None else simulate(graph, costs, problem.reference)
        before_curve = None if problem.reference is None else memory_curve(costs, problem.reference, before)
    return PlanReport(
        graph_name=graph_name,
        num_ops=len(graph.ops),
        joint_nodes=joint_nodes,
        inner=inner,
        planner=result.planner,
        status=result.status,
        budget_bytes=problem.budget_bytes if problem.budget_bytes < UNLIMITED_BYTES else None,
        resident_bytes=graph.resident_bytes,
        peak_before_bytes=before.peak_bytes if peak_before_bytes is None else peak_before_bytes,
        estimated_peak_bytes=after.peak_bytes,
        checked_peak_bytes=checked_peak_bytes,
        smallest_peak_bytes=smallest_peak_bytes,
        saved_before_bytes=before.saved_bytes,
        saved_bytes=after.saved_bytes,
        step_ns=costs.step_ns - chunks_ns,
        added_ns=after.added_ns + chunks_ns,
        lower_bound_ns=min(result.lower_bound_ns, after.added_ns) + chunks_ns,
        floor=_floor_point(problem),
        peak=_peak_point(problem, result, after),
        decisions=decisions(graph, plan, costs),
        live_at_peak=live_at_peak(problem, result, after),
        stages=tuple(StageTime(stage, seconds) for stage, seconds in stages),
        notes=tuple(notes),
        offloaded_bytes=moved_bytes(graph, plan),
        stall_ns=after.stall_ns,
        chunked=tuple(chunked),
        chunks_ns=chunks_ns,
        memory=StepCurves(memory_curve(costs, plan, after), before_curve),
    )


def live_at_peak(problem: RematProblem, result: PlanResult, timeline: MemoryTimeline) -> tuple[LiveStorage, ...]:
    """Everything alive at the peak of `result.plan`, largest first; the sizes sum up to the peak."""
    if result.plan is None or not result.plan.steps:
        return ()
    graph, step = problem.graph, timeline.peak_step
    producers = graph.producers()
    live: list[LiveStorage] = []
    for storage_id in timeline.live_at(step):
        storage, producer = graph.storages[storage_id], producers[StorageId(storage_id)]
        made_by = origin_of(None if producer is None else graph.ops[producer])
        live.append(LiveStorage(storage.name, storage.size_bytes, storage.kind, made_by))
    # Tangents are no instances of the timeline, which counts them from the boundary on.
    if step >= timeline.boundary:
        tangents = (s for s in graph.storages if s.kind is StorageKind.TANGENT)
        live += [LiveStorage(s.name, s.size_bytes, s.kind, Origin()) for s in tangents]
    op = graph.ops[result.plan.steps[step]]
    # A repetition holds the generator's own state as well, to restore it.
    if op.replay is not None and op.id in result.plan.steps[:step]:
        state = graph.storages[op.replay]
        live.append(LiveStorage(f"{state.name}_returned", state.size_bytes, StorageKind.TEMPORARY, origin_of(op)))
    workspace = problem.costs.workspace_bytes[op.id]
    if workspace:
        live.append(LiveStorage("workspace", workspace, StorageKind.TEMPORARY, origin_of(op)))
    return tuple(sorted(live, key=lambda one: -one.size_bytes))


def _peak_point(problem: RematProblem, result: PlanResult, timeline: MemoryTimeline) -> PeakPoint:
    """The step of the plan that reaches its peak."""
    steps = () if result.plan is None else result.plan.steps
    op = problem.graph.ops[steps[timeline.peak_step]] if steps else None
    return PeakPoint(timeline.peak_bytes, bool(steps) and timeline.peak_step >= timeline.boundary, origin_of(op))


def _floor_point(problem: RematProblem) -> PeakPoint:
    """The floor of the peak, below which no plan can go."""
    # A caller may release outputs and tangents early: a floor that counts them could lie above a measured step.
    floor = peak_floor(problem.graph, problem.costs, held=False)
    op = None if floor.op is None else problem.graph.ops[floor.op]
    # Without an operator the kept storages force the floor, at the end of the backward.
    in_backward = op is None or op.phase is Phase.BACKWARD
    return PeakPoint(floor.peak_bytes, in_backward, origin_of(op))
