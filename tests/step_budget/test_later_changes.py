"""Steps that change once nothing is learnt any more are noticed as those of the first step are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler.backend  # noqa: F401 - registers the backend
from remat_compiler import torch_compat

SETTLED = 12
"""Steps after which no call is looked at any more."""
Step = Callable[[], None]


class InParts(nn.Module):
    """One or two graphs."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())]) for _ in range(parts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts[0](x)
        if len(self.parts) > 1:
            torch._dynamo.graph_break()
            x = self.parts[1](x)
        return x.pow(2).mean()


def peak_bytes(model: nn.Module, step: Step) -> int:
    """Most bytes that a step takes, the gradients from before it among them."""
    before = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    deltas, _ = torch_compat.memory_deltas(step)
    return before + max(accumulate(deltas))


def settled(parts: int, budget: int) -> tuple[nn.Module, Any, torch.Tensor]:
    torch._dynamo.reset()
    model, x = InParts(parts), torch.randn(512, 64)
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    compiled = torch.compile(model, backend="remat", options=options)
    for _ in range(SETTLED):
        model.zero_grad()
        compiled(x).backward()
    return model, compiled, x


@pytest.mark.parametrize(("parts", "budget"), [(1, 1_250_000), (2, 2_700_000)])
def test_backwards_that_keep_their_graph_from_then_on(
    parts: int, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, compiled, x = settled(parts, budget)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

    def step() -> None:
        loss = compiled(x)
        loss.backward(retain_graph=True)
        loss.backward()

    for _ in range(3):
        model.zero_grad()
        step()
    model.zero_grad()
    assert peak_bytes(model, step) <= budget


@pytest.mark.parametrize(("parts", "budget"), [(1, 1_000_000), (2, 1_600_000)])
def test_gradients_that_are_accumulated_from_then_on(parts: int, budget: int) -> None:
    model, compiled, x = settled(parts, budget)
    for _ in range(6):
        compiled(x).backward()
    assert peak_bytes(model, lambda: compiled(x).backward()) <= budget
