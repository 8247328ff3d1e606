"""The result of partitioning one joint graph: its two graphs with their plan, or that nothing fits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from remat_compiler.errors import RematError
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.rewrite.overwriting import NOTHING, Overwritten
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of

NEXT_TO_NOTHING = 0.02
"""Part of a step in chunks that is not worth generating its code again."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitGraphs:
    """A joint graph split into forward and backward, with its simulated memory.

    Attributes:
        forward: Forward graph.
        backward: Backward graph.
        problem: The problem given to the planner.
        result: The planner's result.
        timeline: Memory over the step.
        overwritten: Operators of both graphs that write into the memory of an argument.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    problem: RematProblem
    result: PlanResult
    timeline: MemoryTimeline
    overwritten: Overwritten = NOTHING

    @property
    def plan(self) -> Plan:
        """The plan that was carried out."""
        assert self.result.plan is not None, "graphs are split by a plan"
        return self.result.plan


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The step without a budget.

    Attributes:
        graph: Its operators and values, which torch's own cut has others of than the planned graph.
        costs: Costs of its operators.
        plan: Its plan.
        timeline: Its memory.
        is_native: Whether it is torch's own cut; else it saves all that the planned graph could save.
    """

    graph: TrainingGraph
    costs: CostTable
    plan: Plan
    timeline: MemoryTimeline
    is_native: bool

    @staticmethod
    def saving_all(graph: TrainingGraph, costs: CostTable) -> Baseline:
        """The step that recomputes nothing."""
        plan = Plan.saving_all(graph)
        return Baseline(graph, costs, plan, simulate(graph, costs, plan), False)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The partition of one joint graph.

    Attributes:
        joint: The joint graph.
        joint_nodes: Number of its nodes before the rewrite.
        graphs: The two graphs that are compiled.
        before: The step without a budget.
        unchanged: Whether torch's own partition is used as it is.
        early_loops: Whether loops of the backward run early, which Inductor may fuse so that more is alive at once.
        stages: Name and seconds of each stage.
        copies_inputs: Whether the plan has copies of inputs for the inner compiler's layout of convolutions.
        chunked: Losses that are computed in chunks.
        chunks_ns: Modelled time that they add to the step in which they are whole, each operator executed once.
    """

    joint: fx.GraphModule
    joint_nodes: int
    graphs: SplitGraphs
    before: Baseline
    unchanged: bool
    early_loops: bool
    stages: tuple[tuple[str, float], ...]
    copies_inputs: bool = False
    chunked: tuple[ChunkedRegion, ...] = ()
    chunks_ns: int = 0

    @property
    def problem(self) -> RematProblem:
        """The problem given to the planner."""
        return self.graphs.problem

    @property
    def result(self) -> PlanResult:
        """The planner's result."""
        return self.graphs.result

    @property
    def added_ns(self) -> int:
        """Modelled time that the plan adds: by recomputation, by waiting for copies, and by chunks."""
        return self.graphs.timeline.added_ns + self.chunks_ns

    @property
    def gainable_ns(self) -> int:
        """The part of it that a larger budget could spare: recomputation, and waiting for copies.

        Next to nothing counts as nothing if losses are in chunks, whose code takes long to generate again.
        """
        recomputed_ns = self.graphs.timeline.added_ns
        return 0 if self.chunked and recomputed_ns <= NEXT_TO_NOTHING * self.step_ns else recomputed_ns

    @property
    def step_ns(self) -> int:
        """Modelled time of the step that executes every operator once, with losses whole."""
        return self.problem.costs.step_ns - self.chunks_ns

    @property
    def total_ns(self) -> int:
        """Modelled time of the step under the plan."""
        return self.step_ns + self.added_ns

    @property
    def peak_bytes(self) -> int:
        """Simulated peak."""
        return self.graphs.timeline.peak_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes held between the forward and the backward."""
        return self.graphs.timeline.saved_bytes

    @property
    def budget_bytes(self) -> int:
        """Largest peak that the planner was allowed."""
        return self.problem.budget_bytes

    @property
    def memory(self) -> GraphMemory:
        """Simulated memory of the graph."""
        return memory_of(self.problem.graph, self.graphs.timeline, self.graphs.plan)

    @property
    def memory_before(self) -> GraphMemory:
        """Simulated memory of the graph without a budget."""
        return memory_of(self.before.graph, self.before.timeline, self.before.plan)

    @property
    def figures(self) -> PartitionFigures:
        """What is kept of it."""
        return PartitionFigures(
            self.problem, self.memory, self.memory_before, self.added_ns, self.unchanged, self.chunks_ns
        )


@dataclass(frozen=True, slots=True, eq=False)
class PartitionFigures:
    """What planning the same graph once more needs of its partition: plain data, for as long as the graph may run.

    Attributes:
        problem: The problem given to the planner.
        memory: Simulated memory of the graph.
        memory_before: The same without a budget.
        added_ns: Modelled time that the plan adds.
        unchanged: Whether torch's own partition is used as it is.
        chunks_ns: The part of it that every plan of the problem adds, since losses are in chunks.
    """

    problem: RematProblem
    memory: GraphMemory
    memory_before: GraphMemory
    added_ns: int
    unchanged: bool
    chunks_ns: int = 0

    @property
    def step_ns(self) -> int:
        """Modelled time of the step that executes every operator once, with losses whole."""
        return self.problem.costs.step_ns - self.chunks_ns


class NoPlan(RematError):
    """No plan stays within the budget.

    Attributes:
        problem: The planner's problem.
        result: The planner's result, with the plan of the smallest peak that it found.
        between_bytes: Bytes that other graphs take between forward and backward, see `PartitionRequest`.
    """

    def __init__(self, problem: RematProblem, result: PlanResult, between_bytes: int = 0) -> None:
        super().__init__(f"no plan within {problem.budget_bytes} bytes")
        self.problem = problem
        self.result = result
        self.between_bytes = between_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes between forward and backward: the plan's saved bytes and the other graphs'; 0 if those take none."""
        # Without other graphs, the peak itself covers what is held there.
        if not self.between_bytes or self.result.plan is None:
            return 0
        return simulate(self.problem.graph, self.problem.costs, self.result.plan).saved_bytes + self.between_bytes

    @property
    def needed_bytes(self) -> int:
        """Smallest budget that the planner found a plan for."""
        return max(self.result.peak_bytes, self.held_bytes)
