"""What every planner of the registry must do on every problem."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, problems, with_budget
from conformance import check_result
from moving_problems import moving_problem
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import planner_class, planner_names

BUDGETS = (0.0, 0.4, 0.7, 1.0)
"""Fractions of the peak of saving everything."""


QUICK: dict[str, dict[str, Any]] = {
    "auto": {"effort": 1_000, "time_limit": 0.0},
    "home": {"particles": 20, "turns": 20},
    "ilp": {"time_limit": 0.3, "max_executions": 200},
}
"""Less work for planners that take long, by the same stages."""


def quick(name: str) -> Planner:
    """The planner, at small effort."""
    return planner_class(name)(**QUICK.get(name, {}))


def referenced(problem: RematProblem) -> RematProblem:
    """`problem` with save_all's plan as the reference partition."""
    return RematProblem(
        problem.graph, problem.costs, problem.budget_bytes, problem.max_added_ns, SaveAll().plan(problem).plan
    )


@pytest.mark.parametrize("fraction", BUDGETS)
@pytest.mark.parametrize("instance", sorted(LIBRARY))
@pytest.mark.parametrize("name", planner_names())
def test_library(name: str, instance: str, fraction: float) -> None:
    problem = referenced(LIBRARY[instance])
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check_result(quick(name), with_budget(problem, budget)).plan is not None


@pytest.mark.slow
@pytest.mark.parametrize("fraction", BUDGETS)
@pytest.mark.parametrize("instance", sorted(LIBRARY))
@pytest.mark.parametrize("name", sorted(QUICK))
def test_library_at_full_effort(name: str, instance: str, fraction: float) -> None:
    problem = referenced(LIBRARY[instance])
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check_result(planner_class(name)(), with_budget(problem, budget), again=True).plan is not None


@pytest.mark.parametrize("name", planner_names())
def test_planning_twice_gives_the_same(name: str) -> None:
    drawn = [referenced(moving_problem(Random(seed))) for seed in range(3)]
    tight = [(problem := referenced(one), int(0.6 * SaveAll().plan(problem).peak_bytes)) for one in LIBRARY.values()]
    for problem in (*drawn, *(with_budget(problem, budget) for problem, budget in tight)):
        check_result(quick(name), problem, again=True)


def check_random(name: str, problem: RematProblem, fraction: float) -> None:
    """A problem that was drawn, under a part of its peak."""
    problem = referenced(problem)
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check_result(quick(name), with_budget(problem, budget)).plan is not None


@pytest.mark.parametrize("name", [name for name in planner_names() if name != "ilp"])
@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems(name: str, problem: RematProblem, fraction: float) -> None:
    check_random(name, problem, fraction)


@settings(max_examples=20)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems_as_integer_programs(problem: RematProblem, fraction: float) -> None:
    check_random("ilp", problem, fraction)
