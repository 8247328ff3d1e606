"""The steps of one partition that need the joint graph: capture, cost, plan, in one order or another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.early_loops import early_loops, order_of, set_order
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.in_place import bytes_taken_over
from remat_compiler.capture.pair import capture_pair
from remat_compiler.costs.table import cost_table
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.errors import PlanRejected
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.plan import FITTING, PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import SplitGraphs
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import Rule, verify

UNLIMITED_NS = 2**62
"""Added time that no plan reaches, and below which 64 bits hold what planners compute of it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a planner made of the joint graph in one order."""

    captured: CapturedGraph
    problem: RematProblem
    result: PlanResult


class JointStages:
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

    def plan_in_order(
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
            result = plan_with(problem)
        if self.request.verify >= 2:
            self._check_answer(problem, result)
        return Planned(captured, problem, result)

    def _check_answer(self, problem: RematProblem, result: PlanResult) -> None:
        """Verify a plan that may not be applied: that of a refusal, or of an order that does not fit.

        Raises:
            PlanRejected: It breaks a rule, other than that it is over the budget and says so.
        """
        if result.plan is None:
            return
        with self.stage("verify"):
            over = result.status not in FITTING
            found = verify(problem, result.plan, result.peak_bytes)
            violations = [one for one in found if not (over and one.rule is Rule.BUDGET)]
        if violations:
            raise PlanRejected(result.planner, violations)

    def plan_with_early_loops(
        self, budget_bytes: int, plan_with: Callable[[RematProblem], PlanResult]
    ) -> Planned | None:
        """The plan for the joint graph with early loops; `None`, and its own order again, where none fits."""
        with self.stage("prepare"):
            own_order = order_of(self.joint)
            set_order(self.joint, early_loops(self.joint, self.num_fwd_outputs))
        found = self.plan_in_order(*self.captured_with_costs(), budget_bytes, plan_with)
        if found.result.status in FITTING:
            return found
        set_order(self.joint, own_order)
        return None

    def native(self) -> SplitGraphs:
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
        return SplitGraphs(forward, backward, problem, result, timeline)

    def costs(self, captured: CapturedGraph) -> CostTable:
        """Time and workspace of every operator."""
        workspace = tuple(
            -taken if loop else self.workspace.probe(*torch_compat.fake_call(node))
            for node, loop, taken in zip(captured.main, captured.loops, bytes_taken_over(captured))
        )
        return cost_table(captured, workspace, self.request.cost_model, self.workspace.directory)
