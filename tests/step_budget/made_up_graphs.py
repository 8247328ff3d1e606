"""Planned graphs whose compiler is made up: what is emitted takes exactly what the simulator says of the plan."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

from builders import with_budget
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.ir.plan import FITTING, Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.memory_budget import BudgetKind
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Baseline, NoPlan, Partition, SplitGraphs
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.simulate.interlude import planned_around
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.fixed_plans import FixedPlans
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_budget.replan import decide
from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of
from remat_compiler.step_model.step import Step as AnyStep
from remat_passes.registry import make_planner

Step = AnyStep[CompiledGraph]
PLANNER = "chain_dp"


def options_of(budget: object, **options: Any) -> RematOptions:
    """Options as the user gives them, with a planner that takes milliseconds."""
    given = {"memory_budget": budget, "planner": PLANNER, **options}
    return RematOptions.parse(given, check_planner=lambda name: name)


@dataclass
class Kept:
    """What a graph reports in the end."""

    own_budget: int | None
    note: str
    step: StepFigures | None


@dataclass
class MadeUpCompiler:
    """Compiles one joint graph.

    Attributes:
        problem: The joint graph.
        more_bytes: What emitted code takes above the simulator's peak.
        requests: What was compiled, and whether for real.
        kept: What was reported.
        attempts: What came of the requests.
    """

    problem: RematProblem
    more_bytes: int = 0
    requests: list[tuple[PartitionRequest, bool]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    def compile_(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """One try, by the planner that the product uses."""
        self.requests.append((request, real))
        native = Plan.saving_all(self.problem.graph)
        unbudgeted = simulate(self.problem.graph, self.problem.costs, native)
        budget = unbudgeted.peak_bytes + request.between_bytes if request.budget_bytes is None else request.budget_bytes
        asked = with_budget(self.problem, budget)
        result = planned_around(asked, request.between_bytes, make_planner(PLANNER).plan)
        assert result.plan is not None
        if result.status not in FITTING and not request.take_smallest:
            raise NoPlan(asked, result, request.between_bytes)
        timeline = simulate(self.problem.graph, self.problem.costs, result.plan)
        graphs = SplitGraphs(cast(Any, None), cast(Any, None), asked, result, timeline)
        before = Baseline(self.problem.graph, self.problem.costs, native, unbudgeted, False)
        one = Partition(cast(Any, None), 0, graphs, before, result.plan == native, False, ())
        memory = memory_of(self.problem.graph, timeline, result.plan)
        check = DryRun(
            memory.peak_bytes + self.more_bytes,
            (
                MemorySample("forward", "op", 0, "", memory.forward_bytes + self.more_bytes, 0),
                MemorySample("backward", "op", 0, "", memory.backward_bytes + self.more_bytes, 0),
            ),
            boundary_bytes=memory.held_bytes,
            saved_bytes=memory.held_bytes - memory.output_bytes,
            final_bytes=memory.left_bytes,
            between_bytes=request.between_bytes,
        )
        made = Attempt(request, lambda *_: None, real, True, (one,), check)
        self.attempts.append(made)
        return made

    def added_ns(self, graph: CompiledGraph) -> int:
        """Time that recomputation adds to what `graph` runs."""
        return next(one.added_ns for one in self.attempts if one.compiled is graph.compiled)

    @property
    def native(self) -> GraphMemory:
        """Memory without a budget."""
        graph = self.problem.graph
        plan = Plan.saving_all(graph)
        return memory_of(graph, simulate(graph, self.problem.costs, plan), plan)

    def keep(self, attempt: Attempt, own_budget: int | None, note: str, step: StepFigures | None) -> None:
        """Note a report."""
        self.kept.append(Kept(own_budget, note, step))


def new_coordinator() -> StepCoordinator[CompiledGraph]:
    """One that knows of no graph yet, and decides as the product does."""
    return StepCoordinator(decide)


def planned(
    compiler: MadeUpCompiler,
    options: RematOptions,
    coordinator: StepCoordinator[CompiledGraph],
    *,
    has_part: bool = False,
    can_recompile: bool = True,
) -> CompiledGraph:
    """A graph as it stands after its first compilation, under the whole budget or a quarter of it."""
    budget = options.memory_budget.limit_bytes if options.memory_budget.kind is BudgetKind.BYTES else None
    request = PartitionRequest(budget, take_smallest=options.on_infeasible == "min")
    if options.memory_budget.kind is BudgetKind.MIN:
        request = replace(request, budget_bytes=1, take_smallest=True)
    first = replace(request, budget_bytes=(budget or 4) // 4, take_smallest=True) if has_part else request
    search = BudgetSearch(compiler.compile_, options, chooses_layout=False)
    plans = FixedPlans(search, SearchGoal(request), nullcontext) if can_recompile else GraphPlans()
    attempt = compiler.compile_(first)
    compiler.requests.clear()
    return CompiledGraph(attempt, options, budget, compiler.keep, plans, coordinator, (), has_part=has_part)


def step_of(*graphs: CompiledGraph) -> Step:
    """A complete step that calls `graphs` in a row, and runs them backward in reverse."""
    step: Step = AnyStep()
    for graph in graphs:
        step.add(graph)
    step.turns += [Event(Turn.BACKWARD, call) for call in reversed(range(len(graphs)))]
    return step
