"""Values, types and shapes that change between graphs which share the budget: trained as in eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compiler.backend import remat

pytestmark = pytest.mark.usefixtures("compiles_anew")
STEPS = 8
Between = Callable[[int, Tensor], tuple[Any, ...]]


def reads_float(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, float(h.detach().mean())


def adds_float_late(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, 1.0 if step < 4 else 0.5 + step


def adds_int(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, step % 3


def switches_bool(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, step % 3 == 2


def switches_tensor(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, h.detach().square() if step % 3 == 2 else None


def switches_dtype(step: int, h: Tensor) -> tuple[Any, ...]:
    return h.double() if step % 3 == 2 else h, 1


def switches_gradient(step: int, h: Tensor) -> tuple[Any, ...]:
    return h.detach() if step % 3 == 2 else h, 1


def switches_layout(step: int, h: Tensor) -> tuple[Any, ...]:
    return h.t().contiguous().t() if step % 3 == 2 else h, 1


def switches_size(step: int, h: Tensor) -> tuple[Any, ...]:
    return h[: 64 - 8 * (step % 3)], 1


def passes_number_in_tensor(step: int, h: Tensor) -> tuple[Any, ...]:
    return h, torch.tensor(step, dtype=torch.float64)


KINDS: tuple[Between, ...] = (
    *(reads_float, adds_float_late, adds_int, switches_bool, switches_tensor, switches_dtype, switches_gradient),
    *(switches_layout, switches_size, passes_number_in_tensor),
)


class Net(nn.Module):
    """Two graphs, with plain Python between them."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.last = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 16))
        self.between = torch.compiler.disable(between)

    def forward(self, step: int, x: Tensor) -> Tensor:
        h, other = self.between(step, self.first(x))
        if isinstance(other, bool):
            h = h.sin() if other else h
        elif other is not None:
            h = h * (0.5 + other * 0.1)
        return self.last(h.to(torch.float32)).sin().sum()


def trained(between: Between, compile_: Callable[[nn.Module], Any]) -> list[list[Tensor]]:
    torch._dynamo.reset()
    model = Net(between)
    run, found = compile_(model), []
    for step in range(STEPS):
        torch.manual_seed(step)
        model.zero_grad()
        loss = run(step, torch.randn(64, 16))
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    return found


def planned(budget: object) -> Callable[[nn.Module], Any]:
    given = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal", "on_infeasible": "min"}
    return partial(torch.compile, backend=partial(remat, options=given))


BUDGETS = (0.7, "min", 14_000, 1.0)
CASES = [(kind, BUDGETS[i % 4]) for i, kind in enumerate(KINDS)] + [(reads_float, budget) for budget in BUDGETS[1:]]


@pytest.mark.parametrize(("between", "budget"), CASES, ids=lambda given: getattr(given, "__name__", str(given)))
def test_steps_whose_values_change_between_graphs_train_as_in_eager(between: Between, budget: object) -> None:
    wanted, found = trained(between, lambda model: model), trained(between, planned(budget))
    for want, got in zip(wanted, found):
        assert len(want) == len(got)
        torch.testing.assert_close(got, want)
