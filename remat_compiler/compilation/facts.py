"""Facts for the user about a budget that cannot be kept, from the problem and the plan of the smallest peak."""

from __future__ import annotations

from remat_compiler.errors import BudgetFacts, KeptBytes
from remat_compiler.ir.graph import Op, Phase, SavePolicy, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.options import RematOptions
from remat_compiler.simulate.timeline import simulate
from remat_passes.registry import least_budget_bytes

ONE_NUMBER_BYTES = 8


def facts_of(
    problem: RematProblem, result: PlanResult, options: RematOptions, unbudgeted_bytes: int | None = None
) -> BudgetFacts:
    """Facts about a step that does not fit.

    Args:
        problem: The planner's problem.
        result: The planner's result, with the plan of the smallest peak.
        options: The user's options.
        unbudgeted_bytes: Peak of the step without a budget; simulated if `None`.
    """
    graph, costs = problem.graph, problem.costs
    if options.memory_budget.part is not None:
        unbudgeted_bytes = None  # the budget itself is a part of that peak
    elif unbudgeted_bytes is None:
        unbudgeted_bytes = simulate(graph, costs, problem.reference or Plan.saving_all(graph)).peak_bytes
    held = _held(graph)
    return BudgetFacts(
        asked=options.memory_budget.asked,
        unbudgeted_bytes=unbudgeted_bytes,
        planner=result.planner,
        kept=_by_reason(graph, held),
        fixed_bytes=None if result.plan is None else _gradients_at_peak(problem, result.plan),
        undeclared=any(Trait.UNKNOWN in op.traits for op in held),
        proven_bytes=least_budget_bytes(problem),
        returned_bytes=_beside_a_loss(graph),
    )


def _beside_a_loss(graph: TrainingGraph) -> int:
    """Bytes of the gradients that come back for results of the program beside a single number; 0 without one."""
    sizes = [one.size_bytes for one in graph.storages if one.kind is StorageKind.TANGENT]
    return sum(sizes) - min(sizes) if sizes and min(sizes) <= ONE_NUMBER_BYTES else 0


def _held(graph: TrainingGraph) -> list[Op]:
    """Operators of the forward that may not run again, and on which the backward depends.

    Every recomputation of a value that the backward reads ends at these: their results, or values computed from them
    alone, have to be kept.
    """
    producers = graph.producers()
    # Backwards from all that the backward reads, through operators that may run again.
    reached = [storage for op in graph.ops if op.phase is Phase.BACKWARD for storage in op.reads]
    seen: set[int] = set()
    held: dict[int, Op] = {}
    while reached:
        producer = producers[reached.pop()]
        # An input has no producer; its memory is the caller's.
        if producer is None or producer in seen:
            continue
        seen.add(producer)
        op = graph.ops[producer]
        if op.phase is Phase.BACKWARD:
            continue
        # Recomputation stops here, so what lies before the operator is not needed for its sake.
        if _why(op):
            held[op.id] = op
        else:
            reached += op.reads
    return [held[op_id] for op_id in sorted(held)]


def _by_reason(graph: TrainingGraph, held: list[Op]) -> tuple[KeptBytes, ...]:
    """Bytes kept for each reason, the largest first."""
    total: dict[str, int] = {}
    # By reason, the operator that the message names as an example.
    largest: dict[str, Op] = {}
    for op in held:
        why, size = _why(op), _activation_bytes(graph, op)
        total[why] = total.get(why, 0) + size
        if why not in largest or size > _activation_bytes(graph, largest[why]):
            largest[why] = op
    order = sorted(total, key=lambda why: (-total[why], why))
    # A reason without bytes explains nothing of the peak.
    return tuple(KeptBytes(total[why], why, largest[why].source) for why in order if total[why])


def _why(op: Op) -> str:
    """Why the results of `op` are kept; empty if they may be recomputed."""
    return op.no_recompute or ("a checkpoint policy saves it" if op.save_policy is SavePolicy.MUST_SAVE else "")


def _activation_bytes(graph: TrainingGraph, op: Op) -> int:
    """Bytes of the results of `op`, without those that the caller holds anyway."""
    made = (graph.storages[storage] for storage in op.writes)
    return sum(one.size_bytes for one in made if one.kind is StorageKind.ACTIVATION)


def _gradients_at_peak(problem: RematProblem, plan: Plan) -> int:
    timeline = simulate(problem.graph, problem.costs, plan)
    alive = (problem.graph.storages[storage] for storage in timeline.live_at(timeline.peak_step))
    return sum(one.size_bytes for one in alive if one.kind is StorageKind.GRADIENT)
