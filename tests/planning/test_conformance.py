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
    "ilp": {"time_limit": 0.3, "effort": 500, "max_executions": 200},
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


def asked(problem: RematProblem, fraction: float) -> RematProblem:
    """`problem` with a reference partition, under a part of the peak of saving everything."""
    problem = referenced(problem)
    return with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))


@pytest.mark.parametrize("fraction", BUDGETS)
@pytest.mark.parametrize("instance", sorted(LIBRARY))
@pytest.mark.parametrize("name", planner_names())
def test_library(name: str, instance: str, fraction: float) -> None:
    assert check_result(quick(name), asked(LIBRARY[instance], fraction)).plan is not None


@pytest.mark.slow
@pytest.mark.parametrize("fraction", BUDGETS)
@pytest.mark.parametrize("instance", sorted(LIBRARY))
@pytest.mark.parametrize("name", sorted(QUICK))
def test_library_at_full_effort(name: str, instance: str, fraction: float) -> None:
    assert check_result(planner_class(name)(), asked(LIBRARY[instance], fraction), again=True).plan is not None


@pytest.mark.parametrize("name", planner_names())
def test_planning_twice_gives_the_same(name: str) -> None:
    for seed in range(3):
        check_result(quick(name), referenced(moving_problem(Random(seed))), again=True)
    for problem in LIBRARY.values():
        check_result(quick(name), asked(problem, 0.6), again=True)


@pytest.mark.parametrize("name", [name for name in planner_names() if name != "ilp"])
@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems(name: str, problem: RematProblem, fraction: float) -> None:
    assert check_result(quick(name), asked(problem, fraction)).plan is not None


@settings(max_examples=20)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems_as_integer_programs(problem: RematProblem, fraction: float) -> None:
    assert check_result(quick("ilp"), asked(problem, fraction)).plan is not None
