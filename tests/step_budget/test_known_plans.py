"""Plans that are remembered while a budget is shared: what is asked for again is not planned again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

import pytest

from builders import random_problem, with_budget
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.step_budget.known_plans import KnownPlans

asked: list[RematProblem] = []


@dataclass(frozen=True)
class Counted:
    """A planner that notes what it is asked."""

    name: ClassVar[str] = "counted"
    status: PlanStatus = PlanStatus.INFEASIBLE

    def plan(self, problem: RematProblem) -> PlanResult:
        asked.append(problem)
        return PlanResult(self.status, self.name, None, peak_bytes=problem.budget_bytes + len(asked))


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    asked.clear()


def test_a_problem_is_planned_once() -> None:
    known, problem = KnownPlans(), random_problem(Random(0))
    first = known.planner(Counted())(problem)
    assert known.planner(Counted())(random_problem(Random(0))) is first
    assert asked == [problem]


def test_whatever_a_plan_depends_on_tells_problems_apart() -> None:
    known, problem = KnownPlans(), random_problem(Random(0))
    costs = replace(problem.costs, time_ns=tuple(t + 1 for t in problem.costs.time_ns))
    storages = tuple(replace(s, size_bytes=s.size_bytes + 1) for s in problem.graph.storages)
    ops = tuple(replace(op, target="other") for op in problem.graph.ops)
    others = [
        problem,
        with_budget(problem, 7),
        replace(problem, max_added_ns=7),
        replace(problem, offload_bytes=7),
        replace(problem, costs=costs),
        replace(problem, graph=replace(problem.graph, storages=storages)),
        replace(problem, graph=replace(problem.graph, ops=ops)),
    ]
    for one in others * 2:
        known.planner(Counted())(one)
    assert asked == others
    known.planner(Counted(PlanStatus.OPTIMAL))(problem)
    assert len(asked) == len(others) + 1


def test_a_failure_may_end_better_next_time() -> None:
    known, problem = KnownPlans(), random_problem(Random(0))
    for _ in range(2):
        known.planner(Counted(PlanStatus.FAILED))(problem)
    assert len(asked) == 2


def test_the_one_that_was_not_asked_for_for_longest_makes_room() -> None:
    plan, problem = KnownPlans(most=2).planner(Counted()), random_problem(Random(0))
    for budget in (1, 2, 1, 3, 1, 2):
        plan(with_budget(problem, budget))
    assert [one.budget_bytes for one in asked] == [1, 2, 3, 2]
