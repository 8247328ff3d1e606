"""Where the peak of what was compiled is not known, that is said once a graph, with what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import remat_compiler.backend  # noqa: F401 - registers the backend
from remat_compiler.report.store import reports

Told = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The warnings about peaks that are not known."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return lambda: [text for text in caplog.messages if "could not be checked" in text]


class WithinAnOperator(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if self.kind == "cond":
            return torch.cond(x.mean() > 0, lambda x: torch.sin(x).exp(), lambda x: torch.cos(x) * x, (x,)).sum()
        if self.kind == "scan":
            last, each = scan(lambda h, u: (torch.tanh(h + u), h * u), torch.zeros(8, 64), x.view(-1, 8, 64))
            return each.sum() + last.sum()
        return x.sum()


class Routed(nn.Module):
    """Two experts, each for rows that depend on data: at most all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64)) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, chosen = torch.zeros_like(x), self.gate(x).argmax(1)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]))
        return (x + out).pow(2).mean()


def train(model: nn.Module, budget: str | float, steps: int = 3) -> None:
    options: dict[str, Any] = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    compiled = torch.compile(model, backend="remat", options=options)
    for _ in range(steps):
        model.zero_grad()
        compiled(torch.randn(256, 64)).backward()


@pytest.mark.parametrize(
    ("kind", "budget", "times"),
    [("cond", "4MiB", 1), ("scan", "4MiB", 1), ("cond", 1.0, 0), ("cond", "min", 0), ("none", "4MiB", 0)],
)
def test_operators_that_hold_graphs_are_told_of(kind: str, budget: str | float, times: int, told: Told) -> None:
    train(WithinAnOperator(kind), budget)
    assert len(told()) == times
    assert all("which holds subgraphs" in text for text in told())


@pytest.mark.parametrize("budget", ["300KiB", "8MiB"])
def test_sizes_that_depend_on_data_are_planned_by_their_bounds_and_told_of(budget: str, told: Told) -> None:
    model = Routed()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        # One that is too small for the largest sizes is not refused: these sizes need not come.
        train(model, budget)
    assert len(told()) == 1
    assert "depends on data" in told()[0]
    # Both experts with all 256 rows: inputs, two products, an activation, and what is added.
    row_bytes = 4 * (64 + 128 + 128 + 64)
    assert reports()[-1].peak_bytes > 256 * row_bytes
