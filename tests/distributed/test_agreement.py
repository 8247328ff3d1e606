"""Ranks are asked at every point where they could differ, and what they agree on is what is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import remat_compiler
import remat_compiler.backend
from remat_compiler import torch_compat
from remat_compiler.distributed.agreement import Agreement, Alone, Point, Value, agreeing_by, current_agreement
from remat_compiler.distributed.by_store import StoreAgreement
from remat_compiler.distributed.gathers import GatherAgreement, NoOthers
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_passes.bounds import solved
from remat_passes.planning.auto import Auto


@dataclass
class Recorded:
    """Another rank's answers where there are any; else one's own."""

    answers: dict[Point, Callable[[Any], Any]] = field(default_factory=dict)
    asked: list[tuple[Point, Any]] = field(default_factory=list)

    is_alone = False
    gathers: GatherAgreement = field(default_factory=NoOthers)

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        assert question()
        self.asked.append((point, value))
        answer: Value = self.answers.get(point, lambda own: own)(value)
        return answer

    def smallest(self, value: int, question: Callable[[], str]) -> int:
        assert question()
        self.asked.append((Point.BUDGET, value))
        answer: int = self.answers.get(Point.BUDGET, lambda own: own)(value)
        return answer

    def values(self, point: Point) -> list[Any]:
        return [value for at, value in self.asked if at is point]


def trained(agreement: Agreement, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """One step of a small model within a budget that needs recomputation, whose compilation asks `agreement`."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))))
    options = {"memory_budget": BUDGET, "inner": "eager", "max_slowdown": None, "cost_model": "nominal", **options}
    compiled = torch.compile(model, backend=partial(remat_compiler.backend.remat, options=options), dynamic=False)
    x: Tensor = torch.randn(64, 16)
    with agreeing_by(agreement):
        compiled(x).sum().backward()


BUDGET = 140_000


def test_every_point_of_a_compilation_is_asked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Recorded()
    trained(own, tmp_path, monkeypatch)
    points = [point for point, _ in own.asked]
    assert points[:2] == [Point.OUTCOME, Point.COSTS]
    assert points[-1] is Point.PLAN
    assert own.values(Point.OUTCOME) == [None]
    assert all(isinstance(value, CostTable) for value in own.values(Point.COSTS))
    assert all(isinstance(value, PlanResult) for value in own.values(Point.PLAN))
    again = Recorded()
    trained(again, tmp_path, monkeypatch)
    assert again.values(Point.OUTCOME)[0] is not None


def test_two_ranks_that_agree_on_the_question_have_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one was asked for other times."""
    first = Recorded()
    trained(first, tmp_path / "first", monkeypatch)
    costs = iter(first.values(Point.COSTS))
    second = Recorded({Point.COSTS: lambda _: next(costs)})
    trained(second, tmp_path / "second", monkeypatch, cost_model="roofline")
    assert second.values(Point.COSTS) != first.values(Point.COSTS)
    assert [one.plan for one in second.values(Point.PLAN)] == [one.plan for one in first.values(Point.PLAN)]


def test_the_smallest_of_measured_budgets_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "free_device_bytes", lambda inputs: 10 * BUDGET)
    own = Recorded({Point.BUDGET: lambda _: BUDGET})
    trained(own, tmp_path, monkeypatch, memory_budget="auto")
    assert own.values(Point.BUDGET) == [10 * BUDGET]
    assert remat_compiler.reports()[-1].peak_bytes <= BUDGET
    # A budget that the user names is the same on all ranks.
    named = Recorded()
    trained(named, tmp_path / "named", monkeypatch)
    assert not named.values(Point.BUDGET)


def test_the_times_agreed_on_are_those_that_are_planned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(own: CostTable) -> CostTable:
        return replace(own, time_ns=tuple(2 * time for time in own.time_ns))

    trained(Recorded(), tmp_path / "own", monkeypatch)
    before = remat_compiler.reports()[-1]
    trained(Recorded({Point.COSTS: twice}), tmp_path / "other", monkeypatch)
    assert before.added_ns > 0
    assert remat_compiler.reports()[-1].added_ns == 2 * before.added_ns


def test_the_plan_agreed_on_is_the_one_that_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 found one that executes its first operator twice; the report says so here, too."""

    def longer(own: PlanResult) -> PlanResult:
        assert own.plan is not None
        return replace(own, plan=Plan((*own.plan.steps, own.plan.steps[0]), own.plan.boundary))

    own = Recorded()
    trained(own, tmp_path / "own", monkeypatch)
    before = remat_compiler.reports()[-1]
    other = Recorded({Point.PLAN: longer})
    trained(other, tmp_path / "other", monkeypatch)
    assert remat_compiler.reports()[-1].added_ns > before.added_ns


def test_a_rank_whose_solver_finds_another_plan_executes_the_first_rank_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without HiGHS, from whose solutions searches begin: the plan is not part of what ranks ask each other."""
    store = dist.HashStore()
    plans, other = [], Auto.plan

    def solved_otherwise(self: Auto, problem: RematProblem) -> PlanResult:
        found = other(self, problem)
        assert found.plan is not None
        # A repetition whose result nobody reads: valid, and as high.
        return replace(found, plan=Plan((*found.plan.steps, found.plan.steps[0]), found.plan.boundary))

    for rank in range(2):
        monkeypatch.setattr(solved, "has_highs", lambda rank=rank: rank == 0)
        monkeypatch.setattr(Auto, "plan", solved_otherwise if rank else other)
        trained(StoreAgreement(store, rank, 2), tmp_path / str(rank), monkeypatch)
        plans.append(remat_compiler.reports()[-1])
    trained(Alone(), tmp_path / "alone", monkeypatch)
    by_itself = remat_compiler.reports()[-1]
    assert plans[0].peak_bytes == plans[1].peak_bytes
    assert by_itself.added_ns > plans[0].added_ns == plans[1].added_ns


def test_a_plan_agreed_on_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another rank's plan that lacks a gradient is not executed: the graph is compiled as without a plan."""

    def broken(own: PlanResult) -> PlanResult:
        assert own.plan is not None
        return replace(own, plan=Plan(own.plan.steps[:-1], own.plan.boundary))

    trained(Recorded({Point.PLAN: broken}), tmp_path, monkeypatch, on_infeasible="min")
    (message,) = [record.message for record in caplog.records if "planning failed" in record.message]
    assert "PlanRejected" in message


def test_questions_read_the_same_whatever_order_sets_print_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python hashes strings otherwise in each process."""
    texts: list[str] = []

    class Texts(Recorded):
        def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
            texts.append(question())
            return value

    trained(Texts(), tmp_path, monkeypatch)
    assert texts
    assert not any("frozenset" in text for text in texts)


def test_one_process_is_its_own_authority() -> None:
    assert current_agreement() is None
    own = Recorded()
    with agreeing_by(own):
        assert current_agreement() is own
    assert current_agreement() is None
    assert Alone().agree(Point.COSTS, 7, str) == 7
    assert Alone().smallest(7, str) == 7
