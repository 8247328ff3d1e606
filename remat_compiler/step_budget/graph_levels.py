"""The ways to plan a graph that is one of several in a step, and how it is compiled at one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.simulate.step_peak import GraphMemory, Passed
from remat_compiler.step_budget.compiled_graph import PlannedGraph
from remat_compiler.step_budget.share import Level, levels_of
from remat_compiler.step_budget.share_sizes import Member
from remat_passes.registry import make_planner

LEVEL_EFFORT = 2_000
"""Work for each of the plans that only tell how to share, see `remat_passes.planning.auto.Auto`."""


def member_of(graph: PlannedGraph, passed: Sequence[Passed]) -> Member:
    """A graph of a step with sizes that change, and the gradients that it hands on at once."""
    levels = levels_of_graph(graph)
    if graph.changing is None:
        return Member(tuple(passing(level, passed) for level in levels))
    arguments = tuple(one.argument for one in passed)
    return Member(levels, partial(graph.changing.grown, arguments), arguments)


def passing(level: Level, passed: Sequence[Passed]) -> Level:
    """The level where these gradients count with the graph that they are handed to."""
    left_bytes = max(level.memory.left_bytes - sum(one.size_bytes for one in passed), 0)
    return replace(level, memory=replace(level.memory, left_bytes=left_bytes))


def level_without_budget(graph: PlannedGraph) -> Level:
    """The last of `levels_of_graph`, without planning."""
    memory, unbudgeted = graph.memory, graph.unbudgeted
    assert memory is not None
    if not _is_planned_anew(graph) or unbudgeted is None:
        return Level(memory.peak_bytes, 0, memory, graph.added_ns)
    return Level(unbudgeted.peak_bytes, 0, unbudgeted, 0)


def checked_without_budget(graph: PlannedGraph) -> GraphMemory | None:
    """Its memory without a budget as emitted, which is what fractions are of; as simulated where that is not known."""
    if graph.recipe is None or graph.attempt is None or graph.changing is not None:
        return graph.unbudgeted
    one = graph.partition
    if one is not None and one.unchanged:
        return graph.memory
    if graph.native is None:
        with graph.recipe.context():
            graph.native = graph.recipe.compile_(graph.attempt.request.without_budget, real=False).check.memory
    return graph.unbudgeted if graph.native is None else graph.native


def _is_planned_anew(graph: PlannedGraph) -> bool:
    """Whether it can be compiled at other levels than the one that it is at."""
    return (graph.recipe is not None or graph.changing is not None) and graph.partition is not None


def levels_of_graph(graph: PlannedGraph, *, extremes: bool = False) -> tuple[Level, ...]:
    """The ways to plan a graph; as it is, where it cannot be compiled again."""
    unbudgeted, one = graph.unbudgeted, graph.partition
    if not _is_planned_anew(graph) or unbudgeted is None or one is None:
        return (level_without_budget(graph),)
    options = graph.options
    planner = make_planner(options.planner, effort=LEVEL_EFFORT, time_limit=0.0)
    return levels_of(one.problem, unbudgeted, planner.plan, extremes=extremes)


def compiled_at(graph: PlannedGraph, level: Level, *, real: bool) -> Attempt | None:
    """The graph at one level; as it is, where it cannot be compiled again or is at that level."""
    if graph.recipe is None or graph.attempt is None:
        return graph.attempt
    request = replace(
        graph.attempt.request,
        budget_bytes=level.budget_bytes,
        between_bytes=level.between_bytes,
        fraction=None,
        take_smallest=True,
    )
    if request == graph.attempt.request:
        return graph.attempt
    with graph.recipe.context():
        return graph.recipe.compile_(request, real=real)
