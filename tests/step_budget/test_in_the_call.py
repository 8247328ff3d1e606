"""What operators left to eager take within a call of a compiled module is measured, and told once if it is too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from remat_compiler import torch_compat

Told = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    torch._dynamo.reset()
    return lambda: [text for text in caplog.messages if "a call of" in text]


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def far_from(x: torch.Tensor) -> torch.Tensor:
    """Takes a megabyte for a while, and saves nothing of it."""
    with torch.no_grad():
        return (x.detach()[:, None] - x.detach()[None]).square().sum((1, 2)).sqrt()


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def profiled(x: torch.Tensor) -> torch.Tensor:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        x = x * 1.0
    assert any("mul" in event.name for event in found.events())
    return x


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)
        self.raises = self.profiles = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).tanh()
        weights = far_from(y)
        if self.raises:
            raise ValueError("asked to")
        if self.profiles:
            weights = profiled(weights)
        found: torch.Tensor = (self.outer(y).sin().square().sum(1) * weights).mean()
        return found


def compiled(module: nn.Module, budget: object) -> Any:
    options: Any = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    return torch.compile(module, backend="remat", options=options)


def train(call: Any, module: nn.Module, steps: int = 4, rows: int = 64) -> None:
    for _ in range(steps):
        module.zero_grad()
        call(torch.randn(rows, 64)).backward()


@pytest.mark.parametrize(("budget", "times"), [("500KiB", 1), ("3MiB", 0), ("min", 1), (1.0, 0)], ids=str)
def test_what_a_call_takes_for_a_while_is_told_of(budget: object, times: int, told: Told) -> None:
    module = Weighted()
    train(compiled(module, budget), module)
    assert len(told()) == times
    for text in told():
        # A megabyte each for differences and squares.
        assert "a call of Weighted takes 2.0 MiB, more than" in text
    assert not torch_compat.profiler_is_running()


def test_calls_that_raise_or_that_a_profiler_watches_are_not_judged(told: Told) -> None:
    module = Weighted()
    call = compiled(module, "500KiB")
    train(call, module, 2)
    module.raises = True
    for _ in range(3):
        with pytest.raises(ValueError, match="asked to"):
            call(torch.randn(64, 64))
        assert not torch_compat.profiler_is_running()
    module.raises = False
    with profile(activities=[ProfilerActivity.CPU]):
        train(call, module, 1)
    assert not told()


def test_the_program_may_profile_a_part_of_a_call(told: Told) -> None:
    module = Weighted()
    module.profiles = True
    train(compiled(module, "500KiB"), module, 10)
    assert not told()
    assert not torch_compat.profiler_is_running()


def test_only_one_call_is_measured(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = torch_compat.begin_record

    def counted() -> Any:
        begun.append(1)
        return begin()

    monkeypatch.setattr(torch_compat, "begin_record", counted)
    module = Weighted()
    train(compiled(module, "3MiB"), module, 7)
    assert len(begun) == 1


def test_plans_alone_are_never_told_of(told: Told) -> None:
    """What a call takes is what its plans take, to the byte."""
    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    module.append(nn.AvgPool1d(64)).append(nn.Flatten(0)).append(nn.Unflatten(0, (1, 640))).append(nn.AvgPool1d(640))
    for budget in ("min", 0.8, 1.0):
        torch._dynamo.reset()
        train(compiled(module, budget), module, rows=640)
    assert not told()


class Classified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(True), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Conv2d(16, 21, 1)

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layers(x)), classes)


@pytest.mark.parametrize("budget", ["min", "100MiB"])
def test_a_larger_batch_is_no_operator_left_to_eager(budget: object, told: Told) -> None:
    """Under "min" one plan serves all sizes, and its memory is known at those that it was made for."""
    call = compiled(Classified(), budget)
    for batch in (4, 3, 8, 8, 8):
        call(torch.randn(batch, 3, 16, 16), torch.randint(0, 8, (batch, 16, 16))).backward()
    assert told() == []
