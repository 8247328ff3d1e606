"""Buffers that a program updates between the forward and the backward of a planned graph: what PyTorch trains, trains.

A counter or a queue behind a graph break, a bias that a hook moves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))


class Block(nn.Module):
    """Gates by a bias that is a buffer, and scales by another one of two parts."""

    bias: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("bias", torch.zeros(64))
        self.register_buffer("scale", torch.ones(2, 64))

    def forward(self, x: Tensor) -> Tensor:
        gate, h = torch.sigmoid(self.first(x) + self.bias), x
        for _ in range(4):
            h = torch.tanh(h * gate + self.bias + self.scale[1].exp())
        result: Tensor = self.last(h)
        return x + result


def behind_a_break(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    torch._dynamo.graph_break()
    with torch.no_grad():
        model[0].bias.add_(y.mean(0))
        model[1].scale.mul_(0.9)
    return y


def counted_in_another_graph(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model[0](x)
    torch._dynamo.graph_break()
    model[0].scale.add_(1e-3)
    z: Tensor = model[1](y)
    model[0].bias.add_(1e-3)
    return z


def filled_by_slices(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    torch._dynamo.graph_break()
    with torch.no_grad():
        model[0].scale[1, :8] = y.detach()[0, :8]
        model[1].bias.copy_(y.detach()[1])
    return y


PROGRAMS = (behind_a_break, counted_in_another_graph, filled_by_slices)


def _trained(program: Callable[..., Tensor], backend: str, **options: Any) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), Block()), torch.randn(256, 64)
    call = torch.compile(program, backend=backend, options=options or None)
    found = []
    for _ in range(3):
        model.zero_grad()
        loss = call(model, x).square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, *(value.clone() for value in model.buffers())]


@pytest.mark.parametrize("budget", [0.7, "min"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_pytorch_trains_is_trained(program: Callable[..., Tensor], budget: float | str) -> None:
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal", "on_infeasible": "min"}
    torch.testing.assert_close(_trained(program, "remat", **options), _trained(program, "aot_eager"))


def test_inductor_reads_the_copies_too() -> None:
    found = _trained(behind_a_break, "remat", memory_budget="min", cost_model="nominal")
    torch.testing.assert_close(found, _trained(behind_a_break, "aot_eager"), rtol=1e-3, atol=1e-5)


def test_a_step_that_fits_copies_nothing() -> None:
    remat_compiler.clear_reports()
    _trained(behind_a_break, "remat", memory_budget="1GiB", inner="eager", cost_model="nominal")
    assert all(report.peak_bytes == report.peak_before_bytes for report in remat_compiler.reports())
