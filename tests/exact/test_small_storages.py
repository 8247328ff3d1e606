"""A relaxation bounds the optimum from below: against exhaustive search on small random problems."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from builders import random_problem, random_steps
from exact.exhaustive import optimum_ns
from exact.test_program import tight
from remat_compiler.ir.invariants import check_graph
from remat_compiler.simulate.timeline import simulate
from remat_passes.exact.small_storages import zero_small_storages

PROBLEMS = 120


def test_the_optimum_of_the_relaxation_is_not_above() -> None:
    """With any order and number of executions in a gap."""
    changed = 0
    for seed in range(PROBLEMS):
        problem = tight(seed)
        light = zero_small_storages(problem, negligible=3)
        check_graph(light.graph)
        changed += light.graph is not problem.graph
        original, relaxed = (optimum_ns(p, once_per_gap=False) for p in (problem, light))
        assert original is None or (relaxed is not None and relaxed <= original), seed
    assert changed >= PROBLEMS // 10


def test_plans_of_the_relaxation_take_the_same_time_and_no_fewer_bytes_of_the_original() -> None:
    for seed in range(PROBLEMS):
        problem = random_problem(Random(seed))
        light = zero_small_storages(problem, negligible=3)
        plan = random_steps(Random(seed + 1), light)
        relaxed = simulate(light.graph, light.costs, plan)
        original = simulate(problem.graph, problem.costs, plan)
        assert relaxed.added_ns == original.added_ns
        assert relaxed.peak_bytes <= original.peak_bytes


def test_limits_stay() -> None:
    problem = replace(tight(1), max_added_ns=5)
    light = zero_small_storages(problem)
    assert (light.budget_bytes, light.max_added_ns) == (problem.budget_bytes, 5)


def test_it_wants_a_factor() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        zero_small_storages(tight(1), negligible=0)
