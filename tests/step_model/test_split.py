"""A split budget: within the limit, nothing given up in vain, used between levels, refused only at the lowest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, generators
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_model.events import Call, Turn
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of
from remat_compiler.step_model.levels import PlanLevel, levels_of, planned_level
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.split import HALVINGS, MOST_PLANS, Split
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
    found = Split(levels, [1] * len(levels), step_peak).within(limit)
    fitting = [c for c in product(*levels) if step_peak([level.memory for level in c]) <= limit]
    lowest = step_peak([of_graph[0].memory for of_graph in levels])
    if found is None:
        assert lowest > limit
        return
    assert found in fitting
    for graph, level in enumerate(found):
        higher = levels[graph][levels[graph].index(level) + 1 :][:1]
        assert all((*found[:graph], one, *found[graph + 1 :]) not in fitting for one in higher)


@settings(max_examples=300)
@given(rng=generators())
def test_the_smallest_peak_gains_by_no_other_level_of_one_graph(rng: Random) -> None:
    levels = [random_levels(rng) for _ in range(rng.randint(1, 3))]
    runs = [rng.randint(1, 3) for _ in levels]

    def rank(chosen: Sequence[PlanLevel]) -> tuple[int, int]:
        return step_peak([one.memory for one in chosen]), sum(n * one.added_ns for n, one in zip(runs, chosen))

    found = Split(levels, runs, step_peak).smallest()
    others = [c for c in product(*levels) if sum(one != other for one, other in zip(c, found)) <= 1]
    alike = [tuple(of_graph[min(k, len(of_graph) - 1)] for of_graph in levels) for k in range(4)]
    assert rank(found) == min(map(rank, (*others, *alike, found)))


def test_a_graph_that_runs_often_gives_way_last() -> None:
    memory = [GraphMemory(50, 50, 50, 0), GraphMemory(100, 100, 100, 0)]
    levels = (PlanLevel(50, 0, memory[0], 10), PlanLevel(100, 0, memory[1], 0))
    once, often = Split([levels, levels], [1, 5], step_peak).within(150) or (None, None)
    assert (once, often) == (levels[0], levels[1])


@pytest.mark.parametrize("instance", ["chain", "residual", "encoder_decoder"])
def test_levels_go_from_the_smallest_peak_to_no_recomputation(instance: str) -> None:
    problem = LIBRARY[instance]
    plan = SaveAll().plan(problem).plan
    assert plan is not None
    everything = memory_of(problem.graph, simulate(problem.graph, problem.costs, plan), plan)
    levels = levels_of(
        everything, partial(planned_level, problem, make_planner("auto", effort=500, time_limit=0.0).plan)
    )
    assert len(levels) >= 3
    assert levels[-1] == PlanLevel(everything.peak_bytes, 0, everything, 0)
    assert [level.added_ns for level in levels] == sorted((level.added_ns for level in levels), reverse=True)
    assert levels[0].memory.peak_bytes < everything.peak_bytes
    assert levels[0].memory.held_bytes < everything.held_bytes


class Graphs:
    """Graphs that hold what they are allowed to, in steps of a few bytes, and take time for what they do not hold.

    Args:
        grains: For each graph, the bytes of one value.
        runs: How often each runs, all forwards before all backwards.
    """

    def __init__(self, grains: Sequence[int], runs: Sequence[int]) -> None:
        self.grains, self.runs, self.plans = grains, runs, 0
        self.calls = [Call(graph, parameters=i) for graph, n in enumerate(runs) for i in range(n)]

    def plan(self, graph: int, budget_bytes: int, between_bytes: int) -> PlanLevel:
        self.plans += 1
        held = min(budget_bytes - between_bytes, 1000) // self.grains[graph] * self.grains[graph]
        return PlanLevel(budget_bytes, between_bytes, GraphMemory(held, held, held, 0), 1000 - held)

    def levels(self, graph: int) -> list[PlanLevel]:
        return [self.plan(graph, budget, 0) for budget in (200, 500, 1000)]

    def finer(
        self, chosen: Sequence[PlanLevel], levels: Sequence[Sequence[PlanLevel]], limit: int
    ) -> tuple[PlanLevel, ...]:
        plans = [partial(self.plan, graph) for graph in range(len(levels))]
        return Split(levels, self.runs, self.peak).finer(chosen, limit, plans)

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        return whole_step_peak(memories, self.calls, [(Turn.FORWARD, i) for i in range(len(self.calls))])


def test_several_copies_of_one_graph_use_what_the_levels_leave_free() -> None:
    """Of 4 copies, 3 are held while one runs: 4 times 700 bytes fit, and the levels have 500 and 1,000 only."""
    graphs = Graphs([10], [4])
    levels = graphs.levels(0)
    (found,) = graphs.finer([levels[1]], [levels], 2_800)
    # Halved four times, the bytes are met to a sixteenth of 500.
    assert 670 <= found.memory.held_bytes <= 700
    assert graphs.peak([found.memory]) <= 2_800


def test_a_graph_of_few_large_values_keeps_its_level() -> None:
    graphs = Graphs([500], [4])
    levels = graphs.levels(0)
    assert graphs.finer([levels[1]], [levels], 2_800) == (levels[1],)


@given(
    st.lists(st.tuples(st.sampled_from([1, 30, 70, 250]), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(0, 10_000),
    st.data(),
)
def test_no_graph_gets_slower_and_the_step_still_fits(
    drawn: list[tuple[int, int]], more_bytes: int, data: st.DataObject
) -> None:
    grains, runs = zip(*drawn)
    graphs = Graphs(grains, runs)
    levels = [graphs.levels(i) for i in range(len(grains))]
    chosen = [data.draw(st.sampled_from(of_graph)) for of_graph in levels]
    limit = graphs.peak([one.memory for one in chosen]) + more_bytes
    before = graphs.plans
    found = graphs.finer(chosen, levels, limit)
    assert graphs.peak([one.memory for one in found]) <= limit
    assert all(new.added_ns <= old.added_ns for new, old in zip(found, chosen))
    assert graphs.plans - before <= min(MOST_PLANS, HALVINGS * len(grains))
