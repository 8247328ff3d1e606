"""What every planner of the registry must do on every problem."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, problems, with_budget
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import planner_class, planner_names

BUDGETS = (0.0, 0.4, 0.7, 1.0)
"""Fractions of the peak of saving everything."""
EXACT = {PlanStatus.OPTIMAL, PlanStatus.FEASIBLE}


def referenced(problem: RematProblem) -> RematProblem:
    """`problem` with save_all's plan as the reference partition."""
    return RematProblem(
        problem.graph, problem.costs, problem.budget_bytes, problem.max_added_ns, SaveAll().plan(problem).plan
    )


def check(planner: Planner, problem: RematProblem) -> PlanResult:
    """Plan twice; check the plan, the claims and the status."""
    result = planner.plan(problem)
    assert planner.plan(problem) == result, "planning twice gave two results"
    assert result.plan is not None, result.stats
    timeline = simulate(problem.graph, problem.costs, result.plan)
    assert (result.peak_bytes, result.time_ns, result.added_ns) == (
        timeline.peak_bytes,
        timeline.time_ns,
        timeline.added_ns,
    )
    over = result.peak_bytes > problem.budget_bytes
    assert (result.status is PlanStatus.INFEASIBLE) == over
    assert over or result.status in EXACT | {PlanStatus.TIMED_OUT}
    violations = verify(problem, result.plan, result.peak_bytes)
    assert [v for v in violations if not (over and v.rule is Rule.BUDGET)] == []
    return result


@pytest.mark.parametrize("fraction", BUDGETS)
@pytest.mark.parametrize("instance", sorted(LIBRARY))
@pytest.mark.parametrize("name", planner_names())
def test_library(name: str, instance: str, fraction: float) -> None:
    problem = referenced(LIBRARY[instance])
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check(planner_class(name)(), with_budget(problem, budget)).plan is not None


@pytest.mark.parametrize("name", planner_names())
@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from(BUDGETS))
def test_random_problems(name: str, problem: RematProblem, fraction: float) -> None:
    problem = referenced(problem)
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    assert check(planner_class(name)(), with_budget(problem, budget)).plan is not None
