"""Sharing a budget: within the limit, nothing given up in vain, and refused only where the lowest do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings

from builders import LIBRARY, generators
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_budget.share import PlanLevel, levels_of, share
from remat_compiler.step_model.events import Call, Turn
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of
from remat_compiler.step_model.peak import whole_step_peak
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner


def random_levels(rng: Random) -> tuple[PlanLevel, ...]:
    """Levels that hold more and take less time, the higher they are."""
    held, added = 0, 0
    found = []
    for _ in range(rng.randint(1, 4)):
        held += rng.randrange(50)
        memory = GraphMemory(held + rng.randrange(20), held, held + rng.randrange(30), rng.randrange(10))
        found.append(PlanLevel(memory.peak_bytes, 0, memory, added))
        added += rng.randrange(1, 100)
    times = [level.added_ns for level in reversed(found)]
    return tuple(PlanLevel(level.budget_bytes, 0, level.memory, time) for level, time in zip(found, times))


def step_peak(memories: Sequence[GraphMemory]) -> int:
    """Every graph once, in a row."""
    calls = [Call(i) for i in range(len(memories))]
    return whole_step_peak(memories, calls, [(Turn.FORWARD, i) for i in range(len(memories))])


@settings(max_examples=300)
@given(rng=generators())
def test_a_share_fits_and_gives_up_nothing_in_vain(rng: Random) -> None:
    levels = [random_levels(rng) for _ in range(rng.randint(1, 3))]
    limit = rng.randrange(300)
    found = share(levels, [1] * len(levels), step_peak, limit)
    fitting = [c for c in product(*levels) if step_peak([level.memory for level in c]) <= limit]
    lowest = step_peak([of_graph[0].memory for of_graph in levels])
    if found is None:
        assert lowest > limit
        return
    assert found in fitting
    for graph, level in enumerate(found):
        higher = levels[graph][levels[graph].index(level) + 1 :][:1]
        assert all((*found[:graph], one, *found[graph + 1 :]) not in fitting for one in higher)


def test_a_graph_that_runs_often_gives_way_last() -> None:
    memory = [GraphMemory(50, 50, 50, 0), GraphMemory(100, 100, 100, 0)]
    levels = (PlanLevel(50, 0, memory[0], 10), PlanLevel(100, 0, memory[1], 0))
    once, often = share([levels, levels], [1, 5], step_peak, 150) or (None, None)
    assert (once, often) == (levels[0], levels[1])


@pytest.mark.parametrize("instance", ["chain", "residual", "encoder_decoder"])
def test_levels_go_from_the_smallest_peak_to_no_recomputation(instance: str) -> None:
    problem = LIBRARY[instance]
    plan = SaveAll().plan(problem).plan
    assert plan is not None
    everything = memory_of(problem.graph, simulate(problem.graph, problem.costs, plan), plan)
    levels = levels_of(problem, everything, make_planner("auto", effort=500, time_limit=0.0).plan)
    assert len(levels) >= 3
    assert levels[-1] == PlanLevel(everything.peak_bytes, 0, everything, 0)
    assert [level.added_ns for level in levels] == sorted((level.added_ns for level in levels), reverse=True)
    assert levels[0].memory.peak_bytes < everything.peak_bytes
    assert levels[0].memory.held_bytes < everything.held_bytes
