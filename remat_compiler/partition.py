"""Cut one joint graph: capture, cost, plan, verify, lower.  `partition` reads top to bottom.

AOTAutograd calls it in the place of torch's own partitioner.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.mutation import protect_changed_inputs
from remat_compiler.capture.pair import capture_pair
from remat_compiler.costs.table import cost_table
from remat_compiler.errors import PlanRejected, RematError
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.rewrite.lower import lower
from remat_compiler.runtime.workspace import WorkspaceTable
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.verify import verify

UNLIMITED_BYTES = 2**62
"""Budget where there is none."""
SURELY_TOO_SMALL = 0.5
"""Below this fraction of the peak that saves everything, torch's own partition is not asked for: what it
saves is what a contracted step saves, so it cannot fit, and on large graphs it takes longer than planning."""


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What decides how a joint graph is cut; plain data, so that it can be part of a cache key.

    Attributes:
        budget_bytes: Largest peak that the planner may use; `None` with `fraction`, or for no budget.
        fraction: Budget as a fraction of the peak of torch's own partition.
        take_smallest: Where nothing fits, take the plan of the smallest peak.
        planner: Name of the planner.
        cost_model: Where times come from.
        inner: Inner compiler; decides whether the graph is contracted to kernels.
        max_slowdown: Largest time of the step, relative to no recomputation; `None` for no limit.
        time_limit: Seconds that planning may take.
        verify: Level of checking, see `options.Environment`.
        free_layout: Whether the inner compiler may choose how convolutions lie in memory, which is mostly faster
            and needs copies of their weights.
        between_bytes: Bytes that other graphs of the step take between the forward and the backward, beside what the
            forward saves.
    """

    budget_bytes: int | None
    fraction: float | None = None
    take_smallest: bool = False
    planner: str = "auto"
    cost_model: str = "roofline"
    inner: str = "inductor"
    max_slowdown: float | None = 2.0
    time_limit: float = 2.0
    verify: int = 1
    free_layout: bool = True
    between_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How a joint graph is cut, and what the one simulator says of it.

    Attributes:
        forward: Forward graph.
        backward: Backward graph.
        problem: The question put to the planner.
        result: Its answer.
        timeline: Memory over the step.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    problem: RematProblem
    result: PlanResult
    timeline: MemoryTimeline


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The step without a budget.

    Attributes:
        costs: Costs of its operators.
        plan: Its plan.
        timeline: Its memory.
        is_native: Whether it is torch's own cut; else it saves all that the planned graph could save.
    """

    costs: CostTable
    plan: Plan
    timeline: MemoryTimeline
    is_native: bool


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """What was decided for one joint graph.

    Attributes:
        joint: The joint graph.
        joint_nodes: Nodes of the joint graph.
        cut: The cut that is compiled.
        before: The step without a budget.
        unchanged: Whether torch's own cut is taken as it is.
        stages: Name and seconds of each stage.
    """

    joint: fx.GraphModule
    joint_nodes: int
    cut: Cut
    before: Baseline
    unchanged: bool
    stages: tuple[tuple[str, float], ...]


class NoPlan(RematError):
    """No plan stays within the budget.

    Attributes:
        problem: The question.
        result: The planner's answer, with the plan of the smallest peak that it found.
    """

    def __init__(self, problem: RematProblem, result: PlanResult) -> None:
        super().__init__(f"no plan within {problem.budget_bytes} bytes")
        self.problem = problem
        self.result = result


def partition(
    joint: fx.GraphModule,
    request: PartitionRequest,
    *,
    num_fwd_outputs: int,
    static_input_indices: tuple[int, ...],
    plan_with: Callable[[RematProblem], PlanResult],
    workspace: WorkspaceTable,
) -> Partition:
    """Cut `joint` as `request` says.

    Args:
        joint: Joint graph; changed in place (dead code, common subexpressions, copies of changed inputs).
        request: What to aim for.
        num_fwd_outputs: How many of the joint outputs belong to the forward.
        static_input_indices: Positions of the primals that are parameters or buffers.
        plan_with: The planner.
        workspace: Measured workspaces.

    Raises:
        NoPlan: The planner found nothing within the budget.
        PlanRejected: The verifier refused the plan.
    """
    cutter = _Cutter(joint, request, num_fwd_outputs, static_input_indices, workspace)
    with _collection_paused(), torch_compat.copying_nodes():
        return _partition(cutter, plan_with)


def _partition(cutter: _Cutter, plan_with: Callable[[RematProblem], PlanResult]) -> Partition:
    """The stages of `partition`."""
    joint, request = cutter.joint, cutter.request
    with cutter.stage("prepare"):
        torch_compat.prepare_joint(joint)
        joint_nodes = len(joint.graph.nodes)
        protect_changed_inputs(joint, cutter.num_fwd_outputs)
    with cutter.stage("capture"):
        captured = cutter.capture_joint()
    with cutter.stage("costs"):
        costs = cutter.costs(captured)
    before = _save_everything(captured, costs)
    native = None
    if _may_fit_natively(before, request):
        with cutter.stage("torch partition"):
            native = cutter.native_cut()
        assert native.result.plan is not None
        before = Baseline(native.problem.costs, native.result.plan, native.timeline, True)
    budget_bytes = _budget_bytes(request, native)
    if native is not None and _fits(native, request, budget_bytes) and request.planner in ("auto", "min_cut"):
        cut = replace(native, problem=replace(native.problem, budget_bytes=budget_bytes))
        return Partition(joint, joint_nodes, cut, before, True, cutter.stages)
    max_added = None if request.max_slowdown is None else int((request.max_slowdown - 1.0) * costs.step_ns)
    problem = RematProblem(captured.graph, costs, budget_bytes, max_added)
    with cutter.stage("plan"):
        result = plan_with(problem)
    problem, result, plan = _accepted(problem, result, request)
    with cutter.stage("verify"):
        violations = verify(problem, plan, result.peak_bytes) if request.verify else []
        if violations:
            raise PlanRejected(result.planner, violations)
    with cutter.stage("lower"):
        lowered = lower(captured, plan)
    cut = Cut(lowered.forward, lowered.backward, problem, result, simulate(problem.graph, costs, plan))
    return Partition(joint, joint_nodes, cut, before, False, cutter.stages)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """No collection of garbage within the block.

    Graphs are many small objects that all live on, so Python would go through the whole heap again and again: a third
    of the time of a large graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Cutter:
    """The steps of one partition that need the joint graph, and their times."""

    def __init__(
        self,
        joint: fx.GraphModule,
        request: PartitionRequest,
        num_fwd_outputs: int,
        static_input_indices: tuple[int, ...],
        workspace: WorkspaceTable,
    ) -> None:
        self.joint = joint
        self.request = request
        self.num_fwd_outputs = num_fwd_outputs
        self.static_input_indices = static_input_indices
        self.workspace = workspace
        self.fused = request.inner == "inductor"
        self.stages: tuple[tuple[str, float], ...] = ()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage."""
        start = time.perf_counter()
        yield
        self.stages += ((name, time.perf_counter() - start),)

    def capture_joint(self) -> CapturedGraph:
        """The joint graph as data."""
        captured = capture(
            self.joint,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
            fused=self.fused,
        )
        if self.request.verify >= 2:
            check_graph(captured.graph)
        return captured

    def native_cut(self) -> Cut:
        """torch's own cut, simulated."""
        forward, backward = torch_compat.native_partition(
            self.joint,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
        )
        captured, plan = capture_pair(
            forward,
            backward,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
            fused=self.fused,
        )
        costs = self.costs(captured)
        timeline = simulate(captured.graph, costs, plan)
        problem = RematProblem(captured.graph, costs, timeline.peak_bytes, None, plan)
        result = PlanResult(PlanStatus.OPTIMAL, "min_cut", plan, timeline.peak_bytes, timeline.time_ns)
        return Cut(forward, backward, problem, result, timeline)

    def costs(self, captured: CapturedGraph) -> CostTable:
        """Time and workspace of every operator."""
        workspace = tuple(
            -taken if loop else self.workspace.probe(*torch_compat.fake_call(node))
            for node, loop, taken in zip(captured.main, captured.loops, captured.taken_over)
        )
        return cost_table(captured, workspace, self.request.cost_model, self.workspace.directory)


def _save_everything(captured: CapturedGraph, costs: CostTable) -> Baseline:
    """The step that recomputes nothing."""
    forward = [op.id for op in captured.graph.ops if op.phase is Phase.FORWARD]
    rest = [op.id for op in captured.graph.ops if op.phase is not Phase.FORWARD]
    plan = Plan((*forward, *rest), len(forward))
    return Baseline(costs, plan, simulate(captured.graph, costs, plan), False)


def _may_fit_natively(everything: Baseline, request: PartitionRequest) -> bool:
    """Whether torch's own partition is worth its time: it may fit, or the budget is a fraction of its peak."""
    if request.fraction is not None or request.budget_bytes is None:
        return True
    return request.budget_bytes >= SURELY_TOO_SMALL * everything.timeline.peak_bytes


def _fits(native: Cut, request: PartitionRequest, budget_bytes: int) -> bool:
    """Whether torch's own partition stays within the budget, with what runs between its forward and its backward."""
    between_bytes = native.timeline.saved_bytes + request.between_bytes if request.between_bytes else 0
    return max(native.timeline.peak_bytes, between_bytes) <= budget_bytes


def _budget_bytes(request: PartitionRequest, native: Cut | None) -> int:
    """The budget in bytes."""
    if request.budget_bytes is not None:
        return request.budget_bytes
    if request.fraction is None or native is None:
        return UNLIMITED_BYTES
    return int(request.fraction * native.timeline.peak_bytes)


def _accepted(
    problem: RematProblem, result: PlanResult, request: PartitionRequest
) -> tuple[RematProblem, PlanResult, Plan]:
    """The plan to apply, and the problem that it answers (with the budget raised where that is allowed)."""
    if result.plan is None:
        raise NoPlan(problem, result)
    if result.status in (PlanStatus.OPTIMAL, PlanStatus.FEASIBLE):
        return problem, result, result.plan
    if not request.take_smallest:
        raise NoPlan(problem, result)
    raised = replace(problem, budget_bytes=result.peak_bytes)
    return raised, replace(result, status=PlanStatus.FEASIBLE), result.plan
