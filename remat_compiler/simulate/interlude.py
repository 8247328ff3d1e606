"""The other graphs of a step, which run between the forward and the backward of one graph, as an operator of it.

Every planner makes room for it without knowing what it is:

    f0 f1 f2 │ interlude b2 b1 b0       the interlude needs `between_bytes` on top of all that the forward saved

It reads and makes nothing that counts, stands before everything that reads a tangent, and runs once.  A plan of the
problem with the interlude, less that step, is a plan of the problem without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.timeline import MemoryTimeline, simulate

NAME = "interlude"


def planned_around(
    problem: RematProblem, between_bytes: int, plan_with: Callable[[RematProblem], PlanResult]
) -> PlanResult:
    """The plan of `problem` that leaves `between_bytes` free on top of the forward's saved values; 0 for no interlude.

    The status says whether both fit the budget; the peak is that of the plan alone.
    """
    tangent_bytes = sum(s.size_bytes for s in problem.graph.storages if s.kind is StorageKind.TANGENT)
    # The simulator has the tangents from the boundary on, while what runs between is only about to make them.
    beside_bytes = max(between_bytes - tangent_bytes, 0)
    if not beside_bytes:
        return plan_with(problem)
    # At the first operator of the backward: everything before it may run in the forward.
    position = next((op.id for op in problem.graph.ops if op.phase is Phase.BACKWARD), len(problem.graph.ops))
    result = plan_with(with_interlude(problem, OpId(position), beside_bytes))
    if result.plan is None:
        return result
    plan = without_interlude(result.plan, OpId(position))
    timeline = simulate(problem.graph, problem.costs, plan)
    if _saves_forbidden(problem.graph, timeline):
        # A value that may not be saved was recomputed before the interlude: its recomputation stays in the backward.
        # The interlude stood after that boundary, so taking it out does not move the boundary.
        plan = replace(plan, boundary=result.plan.boundary)
        timeline = simulate(problem.graph, problem.costs, plan)
    return timeline.answer(result, plan)


def with_interlude(problem: RematProblem, position: OpId, beside_bytes: int) -> RematProblem:
    """`problem` with an interlude of `beside_bytes` as operator `position`; no forward operator may follow it."""
    graph, costs = problem.graph, problem.costs
    begun = StorageId(len(graph.storages))
    tangents = {s.id for s in graph.storages if s.kind is StorageKind.TANGENT}

    def moved(op: Op) -> Op:
        # Tangents arrive when the other graphs are done, so all that reads one must follow the interlude.
        waits = not tangents.isdisjoint(op.reads)
        return replace(op, id=OpId(op.id + (op.id >= position)), reads=(*op.reads, begun) if waits else op.reads)

    interlude = Op(
        id=position,
        name=NAME,
        target=NAME,
        phase=Phase.BACKWARD,
        reads=(),
        writes=(begun,),
        no_recompute="it stands for the other graphs of the step",
    )
    ops = [moved(op) for op in graph.ops]
    ops.insert(position, interlude)
    marker = Storage(begun, NAME, 0, StorageKind.TEMPORARY)
    return replace(
        problem,
        graph=TrainingGraph(tuple(ops), (*graph.storages, marker)),
        costs=CostTable(
            (*costs.time_ns[:position], 0, *costs.time_ns[position:]),
            (*costs.workspace_bytes[:position], beside_bytes, *costs.workspace_bytes[position:]),
            (*costs.provenance[:position], NAME, *costs.provenance[position:]),
            costs.links,
        ),
        # The ids of the reference plan mean other operators in this graph.
        reference=None,
    )


def without_interlude(plan: Plan, position: OpId) -> Plan:
    """`plan` without its interlude; the backward begins with the step that followed it."""
    steps = tuple(OpId(op - (op > position)) for op in plan.steps if op != position)
    # The other graphs run between forward and backward, so the boundary goes where the interlude stood.
    stood = plan.steps.index(position)
    moved = [
        # Places after the interlude move down by one step.
        replace(one, out_after=one.out_after - (one.out_after > stood), back_before=one.back_before - 1)
        if one.back_before > stood
        else one
        for one in plan.transfers
    ]
    # What was off the device during the interlude alone is on it in all other steps.
    return Plan(steps, stood, tuple(one for one in moved if one.out_after < one.back_before))


def _saves_forbidden(graph: TrainingGraph, timeline: MemoryTimeline) -> bool:
    """Whether something crosses from forward to backward that the user's checkpoints forbid to save."""
    forbidden = {s for op in graph.ops if op.save_policy is SavePolicy.MUST_NOT_SAVE for s in op.writes}
    lives = timeline.instances
    crossing = (lives.start < timeline.boundary) & (lives.last >= timeline.boundary)
    saved = {int(s) for s in lives.storage[crossing]}
    # A kept storage crosses anyway, since the caller holds it.
    return any(not graph.storages[s].kept for s in forbidden & saved)
