"""No plan is executed that the verifier refuses, whatever a planner claims of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.partition import partitioner
from remat_compiler.simulate.timeline import simulate
from remat_passes.planning.interface import finish


@dataclass(frozen=True, slots=True)
class Liar:
    """Saves all, and claims bytes less than that takes, or leaves its last operator out; refuses, if it is to."""

    name: ClassVar[str] = "liar"
    claimed_less: int = 0
    left_out: int = 0
    status: PlanStatus = PlanStatus.FEASIBLE

    def plan(self, problem: RematProblem) -> PlanResult:
        """See above."""
        plan = Plan.saving_all(problem.graph)
        peak = simulate(problem.graph, problem.costs, plan).peak_bytes - self.claimed_less
        plan = replace(plan, steps=tuple(OpId(op) for op in plan.steps[: len(plan.steps) - self.left_out]))
        return PlanResult(self.status, self.name, plan, peak)


@pytest.fixture(autouse=True)
def anew(compiles_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")


def trained(monkeypatch: pytest.MonkeyPatch, planner: Liar, **given: object) -> tuple[Tensor, Tensor]:
    """The gradient of a weight in eager, and under a plan of `planner`."""
    monkeypatch.setattr(partitioner, "make_planner", lambda name, **options: planner)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh()), torch.randn(32, 8)
    model(x).square().sum().backward()
    expected, model[0].weight.grad = model[0].weight.grad, None
    options = {"memory_budget": 0.7, "inner": "eager", "on_infeasible": "min", "cost_model": "nominal"}
    compiled: Any = torch.compile(model, backend="remat", options={**options, **given})
    compiled(x).square().sum().backward()
    found = model[0].weight.grad
    assert isinstance(expected, Tensor)
    assert isinstance(found, Tensor)
    return expected, found


@pytest.mark.parametrize("planner", [Liar(claimed_less=1), Liar(left_out=1)])
def test_a_plan_that_breaks_a_rule_is_not_executed(
    planner: Liar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, found = trained(monkeypatch, planner)
    torch.testing.assert_close(found, expected)
    assert "planning failed (PlanRejected: the plan of planner 'liar' breaks" in caplog.text
    assert not remat_compiler.reports()


@pytest.mark.parametrize(("level", "rejected"), [("1", False), ("2", True)])
def test_plans_that_are_only_answers_are_verified_on_request(
    level: str, rejected: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan of a refusal is not applied as it is: its peak is what the refusal names."""
    monkeypatch.setenv("REMAT_VERIFY", level)
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(Liar, "plan", _refuses_once(Liar.plan))
    with pytest.raises(InfeasibleBudget):
        trained(monkeypatch, Liar(claimed_less=1), memory_budget=20_000, on_infeasible="error")
    assert ("PlanRejected" in caplog.text) == rejected


def _refuses_once(plan: Any) -> Any:
    """`plan`, whose lie is a refusal the first time; afterwards it says the truth."""
    asked: list[RematProblem] = []

    def planned(self: Liar, problem: RematProblem) -> PlanResult:
        asked.append(problem)
        if len(asked) == 1:
            result: PlanResult = plan(self, problem)
            return replace(result, status=PlanStatus.INFEASIBLE)
        return finish(problem, self.name, Plan.saving_all(problem.graph))

    return planned
