"""The steps of one partition that need the joint graph: capture, cost, plan, in one order or another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.early_loops import early_loops, order_of, set_order
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.in_place import bytes_taken_over
from remat_compiler.capture.pair import capture_pair
from remat_compiler.costs.table import cost_table
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.timeline import MemoryTimeline, simulate

FITTING = (PlanStatus.OPTIMAL, PlanStatus.FEASIBLE)
UNLIMITED_NS = 2**62
"""Added time that no plan reaches, and below which 64 bits hold what planners compute of it."""


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
        time_limit: Seconds that planning may take, see `RematOptions`.
        verify: Level of checking, see `options.Environment`.
        free_layout: Whether the inner compiler may choose how convolutions lie in memory, which is mostly faster
            and needs copies of their weights.
        early_loops: Whether loops of the backward may run early where there is room, which is mostly faster.
        between_bytes: Bytes that other graphs of the step take between the forward and the backward, beside what the
            forward saves.
        sizes: Name and number of each symbolic size that is planned for; empty for those of the traced inputs.
        layer_bytes: Bytes of each layer at these sizes as an estimator predicts them, for planners that go by layers;
            empty for what the graph says.
    """

    budget_bytes: int | None
    fraction: float | None = None
    take_smallest: bool = False
    planner: str = "auto"
    cost_model: str = "roofline"
    inner: str = "inductor"
    max_slowdown: float | None = 2.0
    time_limit: float | None = None
    verify: int = 1
    free_layout: bool = True
    early_loops: bool = True
    between_bytes: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    layer_bytes: tuple[int, ...] = ()

    @property
    def without_budget(self) -> PartitionRequest:
        """The same where nothing is to be saved."""
        return replace(self, fraction=None, budget_bytes=None, planner="auto", between_bytes=0)


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


@dataclass(frozen=True, slots=True)
class Planned:
    """What a planner made of the joint graph in one order."""

    captured: CapturedGraph
    problem: RematProblem
    result: PlanResult


class Cutter:
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
        seconds = time.perf_counter() - start
        times = dict(self.stages)
        self.stages = tuple({**times, name: times.get(name, 0.0) + seconds}.items())

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

    def captured_with_costs(self) -> tuple[CapturedGraph, CostTable]:
        """The joint graph, as it is ordered now, and the costs of its operators."""
        with self.stage("capture"):
            captured = self.capture_joint()
        with self.stage("costs"):
            return captured, self.costs(captured)

    def planned(
        self,
        captured: CapturedGraph,
        costs: CostTable,
        budget_bytes: int,
        plan_with: Callable[[RematProblem], PlanResult],
    ) -> Planned:
        """The plan for one order."""
        slowest = self.request.max_slowdown
        most_added = UNLIMITED_NS if slowest is None else (slowest - 1.0) * costs.step_ns
        max_added = int(most_added) if most_added < UNLIMITED_NS else None
        problem = RematProblem(captured.graph, costs, budget_bytes, max_added)
        with self.stage("plan"):
            return Planned(captured, problem, plan_with(problem))

    def planned_early(self, budget_bytes: int, plan_with: Callable[[RematProblem], PlanResult]) -> Planned | None:
        """The plan for the joint graph with early loops; `None`, and its own order again, where none fits."""
        with self.stage("prepare"):
            own_order = order_of(self.joint)
            set_order(self.joint, early_loops(self.joint, self.num_fwd_outputs))
        found = self.planned(*self.captured_with_costs(), budget_bytes, plan_with)
        if found.result.status in FITTING:
            return found
        set_order(self.joint, own_order)
        return None

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
            for node, loop, taken in zip(captured.main, captured.loops, bytes_taken_over(captured))
        )
        return cost_table(captured, workspace, self.request.cost_model, self.workspace.directory)
