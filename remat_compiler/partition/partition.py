"""Cut one joint graph: capture, cost, plan, verify, lower.  `partition` reads top to bottom.

AOTAutograd calls it, through `partitioner`, instead of torch's own partitioner.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.chunks.heads import attentions
from remat_compiler.chunks.layers import has_layers, values_of_layers
from remat_compiler.chunks.losses import has_losses, values_of_losses
from remat_compiler.distributed.agreement import Point
from remat_compiler.errors import PlanRejected
from remat_compiler.ir.codec import encode
from remat_compiler.ir.plan import FITTING, Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import UNLIMITED_BYTES, CostTable, RematProblem
from remat_compiler.option_values import AS_PLANNED
from remat_compiler.partition.candidate import WHOLE, Chunks, Within
from remat_compiler.partition.in_chunks import cheapest_in_chunks
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Baseline, NoPlan, Partition, SplitGraphs
from remat_compiler.partition.session import Session
from remat_compiler.partition.stages import JointStages, Planned
from remat_compiler.rewrite.lower import lower
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.verify import verify
from remat_compiler.stats import timed
from remat_compiler.units import part_of

EARLY_ABOVE = 0.6
"""Fraction of the peak without a budget from which loops of the backward run early; below, every byte counts."""
SURELY_TOO_SMALL = 0.5
"""Below this fraction of the peak that saves everything, torch's own partition is not made: it saves what a contracted
step saves, so it cannot fit, and on large graphs it takes longer than planning."""


def partition(
    joint: fx.GraphModule,
    request: PartitionRequest,
    *,
    num_fwd_outputs: int,
    static_input_indices: tuple[int, ...],
    plan_with: Callable[[RematProblem], PlanResult],
    session: Session,
) -> Partition:
    """Cut `joint` as `request` says.

    Args:
        joint: Joint graph; changed in place (dead code, common subexpressions, copies of inputs).
        request: The budget, the planner, and how they may be used.
        num_fwd_outputs: How many of the joint outputs belong to the forward.
        static_input_indices: Positions of the primals that are parameters or buffers.
        plan_with: The planner.
        session: Tables of measured workspaces and times, and the agreement of the ranks on them.

    Raises:
        NoPlan: The planner found nothing within the budget.
        PlanRejected: The verifier refused the plan.
    """

    with _collection_paused(), torch_compat.copying_nodes():
        # A plan that all ranks agree on is one of the whole.
        as_planned = request.chunks == AS_PLANNED and request.budget_bytes is not None and not request.gathers
        losses = (as_planned or request.chunks > 1) and has_losses(joint, num_fwd_outputs)
        attention = as_planned and bool(attentions(joint, num_fwd_outputs))
        layers = attention or (as_planned and has_layers(joint, num_fwd_outputs))
        # Each number of chunks begins with the graph as it is.
        spare = torch_compat.copy_module(joint) if losses or layers else None

        def in_chunks(chunks: Chunks) -> JointCandidate:
            is_whole = chunks == WHOLE
            graph = joint if is_whole or spare is None else torch_compat.copy_module(spare)
            # Torch's own partition would be compiled as the stock backend does, which may join chunks again.
            may_be_native = request.may_be_native and is_whole
            asked = replace(
                request,
                chunks=chunks.losses,
                layer_chunks=chunks.layers,
                attention_in_chunks=chunks.attention,
                may_be_native=may_be_native,
            )
            stages = JointStages(graph, asked, num_fwd_outputs, static_input_indices, session)
            return JointCandidate(stages, plan_with)

        if spare is None:
            return in_chunks(WHOLE).planned()
        if as_planned:
            # A search tries budgets that are nearly the same, and less and less where nothing fits.
            asked = len(joint.graph.nodes), request.sizes, request.between_bytes, request.offload_bytes
            served = session.chunks.setdefault(asked, {})
            return cheapest_in_chunks(request, in_chunks, served, losses=losses, layers=layers, attention=attention)
        cut = in_chunks(Chunks(request.chunks))
        return cut.planned(in_chunks(WHOLE).step_ns) if cut.chunked else in_chunks(WHOLE).planned()


class JointCandidate:
    """The joint graph in one number of chunks, see `candidate.Candidate`."""

    def __init__(self, stages: JointStages, plan_with: Callable[[RematProblem], PlanResult]) -> None:
        self.stages = stages
        self.plan_with = plan_with
        self.joint_nodes = stages.prepare()
        self.chunked = stages.chunked

    @cached_property
    def captured(self) -> tuple[CapturedGraph, CostTable]:
        """The graph in the program's order, and the costs of its operators."""
        return self.stages.captured_with_costs()

    @property
    def step_ns(self) -> int:
        """Modelled time of the operators, each executed once."""
        return self.captured[1].step_ns

    @property
    def floor_bytes(self) -> int:
        """Peak that no plan goes below."""
        captured, costs = self.captured
        return peak_floor(captured.graph, costs, held=False).peak_bytes

    @cached_property
    def before(self) -> Baseline:
        """The step that recomputes nothing."""
        captured, costs = self.captured
        return Baseline.saving_all(captured.graph, costs)

    def within_bytes(self, problem: RematProblem, timeline: MemoryTimeline, within: Within) -> int:
        """Bytes of values within losses or whole layers that are there at the peak of a simulated plan."""
        joint, outputs = self.stages.joint, self.stages.num_fwd_outputs
        if within is Within.LOSSES:
            values = values_of_losses(joint, outputs)
        else:
            values = values_of_layers(joint, outputs, attention=within is Within.ALL_LAYERS)
        names = {node.name for node in values}
        alive = (problem.graph.storages[one] for one in timeline.live_at(timeline.peak_step))
        return sum(one.size_bytes for one in alive if one.name in names)

    @property
    def times(self) -> tuple[tuple[str, float], ...]:
        """Name and seconds of each stage."""
        return self.stages.stages

    def planned(self, whole_ns: int | None = None) -> Partition:
        """The partition; raises as `partition` does.

        Args:
            whole_ns: `step_ns` of the whole graph; `None` for its own.
        """
        self.stages.whole_ns = whole_ns
        return _partition(self)


def _partition(candidate: JointCandidate) -> Partition:
    """The stages of `partition` from the capture on."""
    stages, plan_with, joint_nodes = candidate.stages, candidate.plan_with, candidate.joint_nodes
    joint, request = stages.joint, stages.request
    captured, costs = candidate.captured
    before = candidate.before
    # The step without a budget is only compared with.
    agreed = None if request.budget_bytes is None else stages.agreed(costs, request.budget_bytes)
    if agreed is not None:
        return _carried_out(stages, agreed, before, joint_nodes)
    # Torch's own partition: the reference of a fraction, and the answer if it fits.
    native = None
    if _may_fit_natively(before, request):
        with stages.stage("torch partition"):
            native = stages.native()
        assert native.result.plan is not None
        before = Baseline(native.problem.graph, native.problem.costs, native.result.plan, native.timeline, True)
    budget_bytes = _budget_bytes(request, native)
    # A planner that the user named plans even if torch's own partition fits.
    takes_native = request.may_be_native and request.planner in ("auto", "min_cut")
    if native is not None and takes_native and _fits(native, request, budget_bytes):
        split = replace(native, problem=replace(native.problem, budget_bytes=budget_bytes))
        return Partition(joint, joint_nodes, split, before, True, False, stages.stages)
    # Not before: torch's own partition computes nothing again from a buffer, if it can save what it computed.
    if stages.copy_small_buffers(before.timeline.peak_bytes):
        captured, costs = stages.captured_with_costs()
    # Early loops are faster once fused, but may hold more at once: they need room in the budget.
    found = None
    # What all ranks agree on is a plan for the program's own order.
    may_be_early = request.early_loops and stages.fused and not request.gathers
    if may_be_early and budget_bytes >= EARLY_ABOVE * before.timeline.peak_bytes:
        found = stages.plan_with_early_loops(budget_bytes, plan_with)
    early = found is not None
    if found is None:
        found = stages.plan_in_order(captured, costs, budget_bytes, plan_with)
    # Agreed on before the check, so that no rank executes what it has not verified.
    asked = replace(found.problem, reference=None)
    answer = stages.session.agreement.agree(Point.PLAN, found.result, lambda: repr(encode((asked, request))))
    return _carried_out(stages, replace(found, result=answer), before, joint_nodes, early=early)


def _carried_out(
    stages: JointStages, found: Planned, before: Baseline, joint_nodes: int, *, early: bool = False
) -> Partition:
    """The joint graph cut by a plan, which is verified."""
    request = stages.request
    problem, result, plan = _accepted(found.problem, found.result, request)
    # Whatever planner or cache it comes from, and before anything is made of it.
    with stages.stage("verify"), timed("verifying_s"):
        violations = verify(problem, plan, result.peak_bytes) if request.verify else []
        if violations:
            raise PlanRejected(result.planner, violations)
    with stages.stage("lower"):
        lowered = lower(found.captured, plan, request.places)
    split = SplitGraphs(
        lowered.forward, lowered.backward, problem, result, simulate(problem.graph, problem.costs, plan)
    )
    split, copies = stages.overwriting(split), bool(stages.copies)
    chunked, chunks_ns = stages.chunked, stages.chunks_ns(problem.costs)
    return Partition(stages.joint, joint_nodes, split, before, False, early, stages.stages, copies, chunked, chunks_ns)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause the garbage collector within the block.

    Graphs are many small objects that all stay alive, so the collector would traverse the whole heap again and again:
    a third of the time of a large graph.
    """
    # The user may have turned collection off, which must stay so.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _may_fit_natively(everything: Baseline, request: PartitionRequest) -> bool:
    """Whether torch's own partition is worth its time: it may fit, or the budget is a fraction of its peak."""
    # Without a budget it is the partition to take.
    if request.fraction is not None or request.budget_bytes is None:
        return True
    return request.budget_bytes >= SURELY_TOO_SMALL * everything.timeline.peak_bytes


def _fits(native: SplitGraphs, request: PartitionRequest, budget_bytes: int) -> bool:
    """Whether torch's own partition fits the budget, including the graphs between its forward and its backward."""
    # Planners see those graphs as an operator of the problem (`simulate.interlude`); this plan was made without it.
    between_bytes = native.timeline.saved_bytes + request.between_bytes if request.between_bytes else 0
    return max(native.timeline.peak_bytes, between_bytes) <= budget_bytes


def _budget_bytes(request: PartitionRequest, native: SplitGraphs | None) -> int:
    """The budget in bytes."""
    if request.budget_bytes is not None:
        return request.budget_bytes
    if request.fraction is None or native is None:
        return UNLIMITED_BYTES
    return part_of(request.fraction, native.timeline.peak_bytes)


def _accepted(
    problem: RematProblem, result: PlanResult, request: PartitionRequest
) -> tuple[RematProblem, PlanResult, Plan]:
    """The plan to apply, and the problem that it answers (with the budget raised if that is allowed)."""
    if result.plan is None:
        raise NoPlan(problem, result, request.between_bytes)
    if result.status in FITTING:
        return problem, result, result.plan
    if not request.take_smallest:
        raise NoPlan(problem, result, request.between_bytes)
    # The verifier holds the plan to its own peak, since it cannot to the budget.
    raised = replace(problem, budget_bytes=result.peak_bytes)
    return raised, replace(result, status=PlanStatus.FEASIBLE), result.plan
