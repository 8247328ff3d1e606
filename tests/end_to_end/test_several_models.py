"""More than one graph or model in a process: each step is still eager's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from remat_compiler.backend import remat


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)


class Broken(nn.Module):
    """Two graphs with dropout and batch norm, between which Dynamo breaks; the second reads the start, too."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.tanh(self.first(x))
        y = F.dropout(self.norm(torch.sin(self.second(start))), 0.3)
        torch._dynamo.graph_break()
        return F.dropout(torch.tanh(self.third(y)) * start, 0.2).square().mean()


@pytest.mark.parametrize("budget", [1.0, 0.6, "min", "1MiB"])
def test_both_sides_of_a_graph_break_are_planned(budget: float | str) -> None:
    assert differences_from_eager(Broken(), (torch.randn(64, 16),), memory_budget=budget, steps=4) == []
    assert len(remat_compiler.reports()) >= 2


def test_the_same_graph_twice_in_a_step() -> None:
    """Both passes hold what they saved until the loss of both runs backward."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Tanh())

    model, (a, b) = Siamese(), torch.randn(2, 32, 16)
    encode = compile_with(model.encode, memory_budget="min")

    def loss(call: Callable[[Tensor], Tensor]) -> Tensor:
        return (call(a) - call(b)).square().mean()

    assert_equal(*(results(model, partial(loss, call)) for call in (model.encode, encode)))


def test_two_models_take_turns() -> None:
    first, second = Broken(16), Broken(32)
    calls = [
        (first, second),
        (compile_with(first, memory_budget="min"), torch.compile(second, backend=compiled_backend(0.7))),
    ]
    found: list[list[Tensor]] = []
    for one, other in calls:
        found.append([])
        for step in range(3):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
            found[-1] += results(first, partial(one, x[:, :16]), step)
            found[-1] += results(second, partial(other, x), step)
            restart(first, second)
    assert_equal(*found)


def test_training_and_evaluation_alternate() -> None:
    model = Broken()
    compiled = compile_with(model, memory_budget="min")
    found: list[list[Tensor]] = []
    for call in (model, compiled):
        restart(model)
        found.append([])
        for step in range(3):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            model.train()
            found[-1] += results(model, partial(call, x), step)
            model.eval()
            with torch.no_grad():
                found[-1].append(call(x).clone())
            found[-1] += results(model, partial(call, x), step)
            found[-1] += [buffer.clone() for buffer in model.buffers()]
    assert_equal(*found)


def compiled_backend(budget: float) -> Callable[..., Any]:
    """The backend with a budget, for a second model; the first one's compiled code stays."""

    return partial(remat, options={"inner": "eager", "memory_budget": budget, "on_infeasible": "min"})


def results(model: nn.Module, run: Callable[[], Tensor], seed: int = 0) -> list[Tensor]:
    """Loss and gradients of one step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss = run()
    torch.autograd.backward(loss)
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def restart(*models: nn.Module) -> None:
    """Running statistics as at first."""
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()


def assert_equal(expected: list[Tensor], found: list[Tensor]) -> None:
    assert len(expected) == len(found) > 0
    assert [i for i, (a, b) in enumerate(zip(expected, found)) if not torch.equal(a, b)] == []
