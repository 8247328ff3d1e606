"""What every planner of the registry must do on every problem."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, problems, with_budget
from conformance import check_result
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import planner_class, planner_names

BUDGETS = (0.0, 0.4, 0.7, 1.0)
"""Fractions of the peak of saving everything."""


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
    assert check_result(planner_class(name)(), with_budget(problem, budget)).plan is not None


@pytest.mark.parametrize("name", planner_names())
@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems(name: str, problem: RematProblem, fraction: float) -> None:
    problem = referenced(problem)
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check_result(planner_class(name)(), with_budget(problem, budget)).plan is not None
