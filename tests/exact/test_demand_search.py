"""The search over demanded sets ends at the optimum of exhaustive search, and never claims what it did not see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exact.exhaustive import optimum_ns
from exact.test_program import tight
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.demand_search import DemandLimits, search_demands
from remat_passes.exact.space import Reductions
from remat_passes.exact.stages import space_of

GROUPS = 16
ENOUGH = DemandLimits(states=4_000, total=10_000_000)
WHOLE = Reductions()
BARE = Reductions(merge_prefix=False, merge_suffix=False, drop_slack_rows=False)


@pytest.mark.parametrize("group", range(GROUPS))
def test_equals_exhaustive_search(group: int) -> None:
    """384 problems, half of them without merged stages: the optimum, with a plan that has it."""
    for seed in range(group, 384, GROUPS):
        problem = tight(seed)
        expected = optimum_ns(problem, once_per_gap=True)
        space = space_of(problem, BARE if seed % 2 else WHOLE)
        found = search_demands(space, None, ENOUGH)
        assert (found.complete, found.added_ns) == (True, expected), seed
        if found.plan is not None:
            timeline = simulate(problem.graph, problem.costs, found.plan)
            assert verify(problem, found.plan, timeline.peak_bytes) == []
            assert timeline.added_ns == expected == found.bound_ns


@pytest.mark.parametrize("group", range(GROUPS))
def test_free_gaps_equal_exhaustive_search(group: int) -> None:
    """Operators in any order and number between two anchors: the optimum of all plans that keep the anchors' order."""
    for seed in range(group, 384, GROUPS):
        problem = tight(seed)
        expected = optimum_ns(problem, once_per_gap=False)
        found = search_demands(space_of(problem, WHOLE), None, replace(ENOUGH, free=True))
        assert (found.complete, found.added_ns) == (True, expected), seed
        if found.plan is not None:
            timeline = simulate(problem.graph, problem.costs, found.plan)
            assert verify(problem, found.plan, timeline.peak_bytes) == []
            assert timeline.added_ns == expected


@pytest.mark.parametrize("seed", range(40))
def test_a_cutoff_at_the_optimum_leaves_nothing(seed: int) -> None:
    problem = tight(seed)
    expected = optimum_ns(problem, once_per_gap=True)
    if expected is None:
        return
    space = space_of(problem, WHOLE)
    below = search_demands(space, expected, ENOUGH)
    assert (below.plan, below.complete, below.bound_ns) == (None, True, expected)
    assert search_demands(space, expected + 1, ENOUGH).added_ns == expected


@pytest.mark.parametrize("states", [1, 2, 5, 20])
def test_few_states_prove_no_more_than_is_true(states: int) -> None:
    """Plans that fit, bounds that hold, and `complete` only with the optimum."""
    for seed in range(60):
        problem = tight(seed)
        expected = optimum_ns(problem, once_per_gap=True)
        limits = DemandLimits(states, 10_000_000, thins=seed % 4 > 0, byte_ns=0.1 * (seed % 3))
        found = search_demands(space_of(problem, WHOLE), None, limits)
        if found.plan is not None:
            assert expected is not None
            timeline = simulate(problem.graph, problem.costs, found.plan)
            assert verify(problem, found.plan, timeline.peak_bytes) == []
            assert timeline.added_ns == found.added_ns
        if expected is not None:
            assert found.bound_ns <= expected <= (found.added_ns if found.added_ns is not None else expected)
        if found.complete:
            assert found.added_ns == expected


def test_the_work_is_limited() -> None:
    problem = tight(3)
    found = search_demands(space_of(problem, WHOLE), None, DemandLimits(4_000, total=1))
    assert (found.plan, found.complete) == (None, False)
    assert found.bound_ns <= (optimum_ns(problem, once_per_gap=True) or 0)
