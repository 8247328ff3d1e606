"""Plans for graphs with operators that end storages (`Op.ends`): nothing reads a parameter once its gradient has left.

Planners need not know of it.  They are given a problem in which such an operator reads a marker without bytes that each
reader of the parameter makes, so that it follows all of them.  If a plan runs one of the readers again later, the
operator is moved behind it.  That holds the gradient longer, so the plan may need more than the budget: then a plan for
less is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.plan import FITTING, Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate

TRIES = 4
"""Plans that are asked for at most until one fits once its operators are moved."""


def planned_before_ends(problem: RematProblem, plan_with: Callable[[RematProblem], PlanResult]) -> PlanResult:
    """The plan of `problem` in which nothing reads a storage behind the operator that ends it."""
    if not any(op.ends for op in problem.graph.ops):
        return plan_with(problem)
    marked = with_markers(problem)
    budget_bytes = problem.budget_bytes
    best: PlanResult | None = None
    for _ in range(TRIES):
        found = plan_with(replace(marked, budget_bytes=budget_bytes))
        if found.plan is None:
            return best or found
        moved = _judged(problem, found, behind_readers(problem.graph, found.plan))
        if best is None or (moved.peak_bytes, moved.added_ns) < (best.peak_bytes, best.added_ns):
            best = moved
        over_bytes = moved.peak_bytes - problem.budget_bytes
        if over_bytes <= 0 or found.status not in FITTING:
            break
        budget_bytes -= over_bytes
    assert best is not None
    return best


def with_markers(problem: RematProblem) -> RematProblem:
    """`problem` with operators that end storages reading a marker of each reader of these in the backward."""
    graph = problem.graph
    ending = {s: op.id for op in graph.ops for s in op.ends}
    storages, made, waited = list(graph.storages), dict[OpId, StorageId](), dict[OpId, list[StorageId]]()
    for op in graph.ops:
        # What the forward runs comes first in any case.
        ends = [] if op.phase is Phase.FORWARD else [ending[s] for s in op.reads if ending.get(s, op.id) != op.id]
        for end in ends:
            if op.id not in made:
                made[op.id] = StorageId(len(storages))
                storages.append(Storage(made[op.id], f"{op.name}_ran", 0, StorageKind.TEMPORARY))
            waited.setdefault(end, []).append(made[op.id])
    ops = (_marked(op, made.get(op.id), waited.get(op.id, [])) for op in graph.ops)
    return replace(problem, graph=TrainingGraph(tuple(ops), tuple(storages)), reference=None)


def behind_readers(graph: TrainingGraph, plan: Plan) -> Plan:
    """`plan` with each operator that ends storages behind the last step that reads one of them."""
    last_read = {s: step for step, op in enumerate(plan.steps) for s in graph.ops[op].reads if not graph.ops[op].ends}
    # By the step behind which each step stands; a step that moves comes behind the one that stays.
    places = []
    for step, op_id in enumerate(plan.steps):
        ends = graph.ops[op_id].ends
        places.append((max([step, *(last_read.get(s, step) for s in ends)]), bool(ends), step))
    order = sorted(range(len(places)), key=places.__getitem__)
    if order == list(range(len(places))):
        return plan
    new_place = {step: place for place, step in enumerate(order)}
    stays = [step for step, (behind, _, _) in enumerate(places) if behind == step]

    def moved(place: int) -> int:
        """The place before the same step as `place`, among those that stay."""
        return min((new_place[step] for step in stays if step >= place), default=len(order))

    transfers = (
        replace(one, out_after=moved(one.out_after), back_before=moved(one.back_before)) for one in plan.transfers
    )
    return Plan(tuple(plan.steps[step] for step in order), plan.boundary, tuple(transfers))


def _marked(op: Op, made: StorageId | None, waited: list[StorageId]) -> Op:
    writes = op.writes if made is None else (*op.writes, made)
    # Plans are put right afterwards: those of planners, and from a cache, are plans as they are.
    return replace(op, writes=writes, reads=(*op.reads, *sorted(waited)), ends=())


def _judged(problem: RematProblem, result: PlanResult, plan: Plan) -> PlanResult:
    """`result` with `plan` in place of its own, judged for `problem`."""
    timeline = simulate(problem.graph, problem.costs, plan)
    fits = timeline.peak_bytes <= problem.budget_bytes
    status = result.status
    if not fits and status in FITTING:
        status = PlanStatus.INFEASIBLE
    elif fits and status is PlanStatus.INFEASIBLE:
        status = PlanStatus.FEASIBLE
    return replace(timeline.answer(result, plan), status=status)
