"""The steps of one partition that need the joint graph: capture, cost, plan, in one order or another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.channels_last import copy_inputs_of_convolutions
from remat_compiler.capture.early_loops import early_loops, order_of, set_order
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.in_place import bytes_overwritten, bytes_taken_over
from remat_compiler.capture.leaving import hand_over, right_behind_readers
from remat_compiler.capture.mutation import copy_small_buffers, protect_changed_inputs
from remat_compiler.capture.padding import pad_products
from remat_compiler.capture.pair import capture_pair
from remat_compiler.capture.storages import storage_bytes
from remat_compiler.capture.view_scatters import mark_view_scatters
from remat_compiler.chunks.layers import chunk_layers
from remat_compiler.chunks.losses import chunk_losses
from remat_compiler.costs.table import cost_table
from remat_compiler.distributed.agreement import Point
from remat_compiler.errors import PlanRejected, RanksDiffer, Unplannable
from remat_compiler.ir.codec import encode
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.plan import FITTING, PlanResult, PlanStatus
from remat_compiler.ir.problem import UNLIMITED_BYTES, CostTable, RematProblem
from remat_compiler.partition.collectives import program_of
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import SplitGraphs
from remat_compiler.partition.session import Session
from remat_compiler.partition.tables import sum_by_kernel
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.rewrite.overwriting import overwrite_arguments, overwritten
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify

COPIED_PART = 100
"""Of a step's bytes, the part that copies of buffers may take: one in so many."""
UNLIMITED_NS = 2**62
"""Added time that no plan reaches; up to it, 64 bits hold what planners compute from added times."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planner's result for the joint graph in one order."""

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
        session: Session,
    ) -> None:
        self.joint = joint
        self.request = request
        self.num_fwd_outputs = num_fwd_outputs
        self.static_input_indices = static_input_indices
        self.session = session
        self.fused = request.inner == "inductor"
        self.gathers = request.gathers
        # Inductor reuses memory by itself, by settings of its own.
        self.overwrites = request.inplace_buffers and not self.fused
        self.copies: tuple[fx.Node, ...] = ()
        self.chunked: tuple[ChunkedRegion, ...] = ()
        self.whole_ns: int | None = None  # of the step without chunks; `None` where there are none
        self.stages: tuple[tuple[str, float], ...] = ()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        # A second order of the graph goes through the same stages again: their times add up.
        times = dict(self.stages)
        self.stages = tuple({**times, name: times.get(name, 0.0) + seconds}.items())

    def prepare(self) -> int:
        """Bring the joint graph to the form in which it is captured; returns how many nodes torch has in it.

        Raises:
            Unplannable: Parts of it run on different streams.
        """
        # A value that is computed again on another stream would have to wait for what it reads.
        if torch_compat.uses_streams(self.joint.graph):
            raise Unplannable("the graph runs on several streams")
        with self.stage("prepare"):
            torch_compat.prepare_joint(self.joint, self.num_fwd_outputs, self.static_input_indices)
            joint_nodes = len(self.joint.graph.nodes)
            # Before anything is decided, so that planners see an ordinary problem.
            if self.request.chunks > 1:
                self.chunked = chunk_losses(self.joint, self.num_fwd_outputs, self.request.chunks)
            if self.request.layer_chunks > 1:
                given, attention = self.request.layer_chunks, self.request.attention_in_chunks
                self.chunked += chunk_layers(self.joint, self.num_fwd_outputs, given, attention=attention)
            # Before the capture: copies of inputs that the step changes are storages of the problem.
            protect_changed_inputs(self.joint, self.num_fwd_outputs)
            # And so are those that Inductor makes, which chooses a layout only where it may.
            if self.fused and self.request.free_layout:
                self.copies = copy_inputs_of_convolutions(self.joint, self.num_fwd_outputs)
            if self.fused:
                pad_products(self.joint, copies=self.request.free_layout)
                sum_by_kernel(self.joint)
            # Inductor writes no more than the result, in the type that was traced.
            if not self.fused:
                mark_view_scatters(self.joint)
                torch_compat.correct_norms(self.joint.graph)
            hand_over(self.joint, self.num_fwd_outputs, self.request.leaving, dict(self.request.hooks_bytes))
        return joint_nodes

    def chunks_ns(self, costs: CostTable) -> int:
        """Time that chunks add to a step that executes each operator once; 0 if the model has them faster."""
        return 0 if self.whole_ns is None else max(costs.step_ns - self.whole_ns, 0)

    def copy_small_buffers(self, peak_bytes: int) -> bool:
        """Have values recomputed from copies of small buffers, by a step of so many bytes; whether there are any."""
        with self.stage("prepare"):
            return copy_small_buffers(self.joint, self.num_fwd_outputs, peak_bytes // COPIED_PART) > 0

    def capture_joint(self) -> CapturedGraph:
        """The joint graph as a `TrainingGraph`, with its nodes."""
        captured = capture(
            self.joint,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
            fused=self.fused,
            gathers=self.gathers,
        )
        if self.request.verify >= 2:
            check_graph(captured.graph)
        return captured

    def captured_with_costs(self) -> tuple[CapturedGraph, CostTable]:
        """The joint graph in its present order, and the costs of its operators."""
        with self.stage("capture"):
            captured = self.capture_joint()
        with self.stage("costs"):
            return captured, self.costs(captured)

    def agreed(self, costs: CostTable, budget_bytes: int) -> Planned | None:
        """The plan by which all ranks gather parameters again in this program; `None` if they agreed on none.

        Raises:
            RanksDiffer: The graph differs from the one that was agreed on in more than its sizes.
        """
        plan = self.session.agreement.gathers.agreed_plan(program_of(self.joint.graph, self.session.program))
        if plan is None:
            return None
        self.gathers = True
        captured = self.capture_joint()
        problem = RematProblem(captured.graph, costs, budget_bytes)
        violations = verify(replace(problem, budget_bytes=UNLIMITED_BYTES), plan)
        if violations:
            raise RanksDiffer(
                "all ranks agreed to gather parameters again in the backward, by a plan that does not suit this graph "
                f"({violations[0]}): another one could make the job hang. Train with the same sizes on all ranks"
            )
        timeline = simulate(captured.graph, costs, plan)
        status = PlanStatus.FEASIBLE if timeline.peak_bytes <= budget_bytes else PlanStatus.INFEASIBLE
        peak_bytes, time_ns, added_ns = timeline.peak_bytes, timeline.time_ns, timeline.added_ns
        return Planned(captured, problem, PlanResult(status, "agreed", plan, peak_bytes, time_ns, added_ns))

    def plan_in_order(
        self,
        captured: CapturedGraph,
        costs: CostTable,
        budget_bytes: int,
        plan_with: Callable[[RematProblem], PlanResult],
    ) -> Planned:
        """The plan for one order."""
        # A slowdown may be infinite, or too large for 64 bits: either means no limit.
        slowest = self.request.max_slowdown
        chunks_ns = self.chunks_ns(costs)
        most_added = UNLIMITED_NS if slowest is None else (slowest - 1.0) * (costs.step_ns - chunks_ns) - chunks_ns
        max_added = max(int(most_added), 0) if most_added < UNLIMITED_NS else None
        offload_bytes = self.request.offload_bytes
        problem = RematProblem(captured.graph, costs, budget_bytes, max_added, offload_bytes=offload_bytes)
        with self.stage("plan"):
            result = plan_with(problem)
        if self.request.verify >= 2:
            self._check_answer(problem, result)
        return Planned(captured, problem, result)

    def _check_answer(self, problem: RematProblem, result: PlanResult) -> None:
        """Verify a plan even if it may never be applied, as with a refusal or an order that does not fit.

        Raises:
            PlanRejected: It breaks a rule. A plan that is over the budget, and says so, breaks none by that.
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
        """The plan for the joint graph with early loops; `None`, with the own order restored, if none fits."""
        with self.stage("prepare"):
            own_order = order_of(self.joint)
            set_order(self.joint, early_loops(self.joint, self.num_fwd_outputs))
        found = self.plan_in_order(*self.captured_with_costs(), budget_bytes, plan_with)
        if found.result.status in FITTING:
            return found
        # The capture of the own order, which the caller has, refers to the joint graph in that order.
        set_order(self.joint, own_order)
        return None

    def overwriting(self, split: SplitGraphs) -> SplitGraphs:
        """`split` with operators that overwrite arguments, if that is asked for; its graphs are changed in place."""
        if not self.overwrites:
            return split
        with self.stage("overwrite"):
            return replace(split, overwritten=overwritten(self._overwrite(split.forward, split.backward)))

    def _overwrite(self, forward: fx.GraphModule, backward: fx.GraphModule) -> list[fx.Node]:
        return [*overwrite_arguments(forward, self.num_fwd_outputs), *overwrite_arguments(backward)]

    def native(self) -> SplitGraphs:
        """torch's own partition, simulated."""
        forward, backward = torch_compat.native_partition(
            self.joint,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
            # As Inductor does with copies that it makes itself.
            saved=self.copies,
        )
        right_behind_readers(backward)
        # Captured from the two graphs rather than from the joint one: torch recomputes and orders by its own rules.
        captured, plan = capture_pair(
            forward,
            backward,
            num_fwd_outputs=self.num_fwd_outputs,
            static_input_indices=self.static_input_indices,
            fused=self.fused,
        )
        # Here the plan is known, and with it all that is overwritten.
        places = {node: i for i, node in enumerate(_calls(forward, backward))}
        changed = self._overwrite(forward, backward) if self.overwrites else []
        calls = _calls(captured.joint)
        costs = self.costs(captured, {calls[places[node]]: storage_bytes(node) for node in changed})
        timeline = simulate(captured.graph, costs, plan)
        # Its own peak as the budget, until the caller knows what a fraction of it is.
        problem = RematProblem(captured.graph, costs, timeline.peak_bytes, None, plan)
        result = PlanResult(PlanStatus.OPTIMAL, "min_cut", plan, timeline.peak_bytes, timeline.time_ns)
        return SplitGraphs(forward, backward, problem, result, timeline, overwritten(changed))

    def costs(self, captured: CapturedGraph, changed: Mapping[fx.Node, int] | None = None) -> CostTable:
        """Time and workspace of every operator.

        Args:
            captured: The graph.
            changed: Bytes that interpreted operators overwrite, by node; by default what they do under every plan.
        """
        # A loop has no workspace of its own.  By what a result takes over from an argument, it is less.
        workspace = tuple(
            (0 if loop else self.session.workspace.probe(*torch_compat.fake_call(node))) - taken
            for node, loop, taken in zip(captured.main, captured.loops, bytes_taken_over(captured))
        )
        if self.overwrites:
            changed = bytes_overwritten(captured) if changed is None else changed
            workspace = tuple(own - changed.get(node, 0) for own, node in zip(workspace, captured.main))
        costs = cost_table(captured, workspace, self.request.cost_model, self.session.directory, self.request.place)
        taken = tuple(0 if changed is None else changed.get(node, 0) for node in captured.main)
        asked = captured.graph, self.request.cost_model, self.request.offload_bytes, taken
        # Encoded, for sets print in another order on each rank.
        return self.session.agreement.agree(Point.COSTS, costs, lambda: repr(encode(asked)))


def _calls(*modules: fx.GraphModule) -> list[fx.Node]:
    """The operators of the graphs, in order."""
    return [node for module in modules for node in module.graph.nodes if node.op == "call_function"]
