"""The levels at which a graph of a step can be planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial

from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.known_plans import KnownPlans
from remat_compiler.step_budget.size_plans import SizePlans
from remat_compiler.step_model.events import Passed
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.levels import PlanLevel, levels_of, planned_level
from remat_compiler.step_model.size_split import GraphChoices
from remat_passes.registry import make_planner

LEVEL_EFFORT = 2_000
"""Effort for the plans that only tell how to share the budget, see `remat_passes.planning.auto.Auto`."""
KNOWN = KnownPlans()


def member_of(graph: CompiledGraph, passed: Sequence[Passed]) -> GraphChoices:
    """The choices for a graph of a step whose sizes change.

    Args:
        graph: The graph.
        passed: Gradients that its backward hands to the graph that runs next.
    """
    levels = GraphLevels(graph).all()
    if not isinstance(graph.plans, SizePlans):
        return GraphChoices(tuple(passing(level, passed) for level in levels))
    # Their bytes change with the sizes: taken off by `grown`, not here.
    arguments = tuple(one.argument for one in passed)
    return GraphChoices(levels, partial(graph.plans.grown, arguments), arguments)


def passing(level: PlanLevel, passed: Sequence[Passed]) -> PlanLevel:
    """The level without these gradients, which count with the graph that they are handed to."""
    left_bytes = max(level.memory.left_bytes - sum(one.size_bytes for one in passed), 0)
    return replace(level, memory=replace(level.memory, left_bytes=left_bytes))


def level_without_budget(graph: CompiledGraph) -> PlanLevel:
    """The last of `GraphLevels.all`, without planning."""
    memory, unbudgeted = graph.memory, graph.unbudgeted
    assert memory is not None
    # What cannot be compiled again has one level: as it is.
    if not _can_change(graph) or unbudgeted is None:
        return PlanLevel(memory.peak_bytes, 0, memory, graph.added_ns)
    if _is_as_good(graph, memory, unbudgeted):
        return PlanLevel(memory.peak_bytes, 0, memory, 0, is_present=True)
    return PlanLevel(unbudgeted.peak_bytes, 0, unbudgeted, 0)


def _is_as_good(graph: CompiledGraph, present: GraphMemory, unbudgeted: GraphMemory) -> bool:
    """Whether the present compilation adds no time and takes no more than the step without a budget."""
    # Sizes that change have other variants, and what may be moved off the device is shared anew.
    if graph.plans.at_all_sizes or graph.attempt is None or graph.attempt.request.offload_bytes:
        return False
    return not graph.added_ns and all(now <= then for now, then in zip(astuple(present), astuple(unbudgeted)))


def _can_change(graph: CompiledGraph) -> bool:
    """Whether it can be planned at other levels than its present one."""
    return graph.plans.can_change and graph.figures is not None


@dataclass(frozen=True, slots=True)
class GraphLevels:
    """The levels that a graph can be planned at; only its present one if it cannot be compiled again.

    Attributes:
        graph: The graph.
        moves: Whether it may move what it has room for off the device.
        thorough: Whether the lowest levels are looked for thoroughly, which takes several times as long.
    """

    graph: CompiledGraph
    moves: bool = True
    thorough: bool = True

    def all(self, *, extremes: bool = False) -> tuple[PlanLevel, ...]:
        """All levels; see `levels_of`."""
        top, plan, unbudgeted = level_without_budget(self.graph), self._planner, self.graph.unbudgeted
        if plan is None or unbudgeted is None:
            return (top,)
        # Without a budget losses are whole.
        return (*map(self._with_chunks, levels_of(unbudgeted, plan, extremes=extremes)[:-1]), top)

    def between(self, budget_bytes: int, between_bytes: int) -> PlanLevel | None:
        """The level at any budget, of which some bytes are free in between; `None` if there is no plan."""
        plan = self._planner
        level = None if plan is None else plan(budget_bytes, between_bytes)
        return None if level is None else self._with_chunks(level)

    @property
    def _planner(self) -> Callable[[int, int], PlanLevel | None] | None:
        graph = self.graph
        if not _can_change(graph) or graph.figures is None:
            return None
        problem = replace(graph.figures.problem, offload_bytes=graph.room_bytes if self.moves else 0)
        # As it is compiled: in other orders more would seem to fit than does.
        reorders = graph.attempt is None or graph.attempt.request.reorders
        options = {"effort": LEVEL_EFFORT, "time_limit": 0.0, "reorders": reorders, "thorough": self.thorough}
        return partial(planned_level, problem, KNOWN.planner(make_planner(graph.options.planner, **options)))

    def _with_chunks(self, level: PlanLevel) -> PlanLevel:
        """The level with the time that chunks add to every plan of the problem."""
        figures = self.graph.figures
        return level if figures is None else replace(level, added_ns=level.added_ns + figures.chunks_ns)
