"""A budget that nobody keeps is said so once for each module: none of its graphs that are trained is planned."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat_compiler
from forked import run_program

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {inner}
    def forward(self, x):
        return self.inner(x)

model = Net()
step = torch.compile(model, backend="{backend}")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    found = step(torch.randn(4, 5, 8))
    (found if isinstance(found, torch.Tensor) else found[0]).square().mean().backward()
    if {steps}:
        optimizer.step()
print("done")
"""


@pytest.mark.parametrize(
    ("inner", "backend", "steps", "said"),
    [
        ("nn.LSTM(8, 8)", "remat", True, 1),
        ("nn.LSTM(8, 8)", "remat", False, 1),
        ("nn.LSTM(8, 8)", "aot_eager", True, 0),
        ("nn.Linear(8, 8)", "remat", True, 0),
    ],
)
def test_it_is_said_once_where_nothing_was_planned(
    inner: str, backend: str, steps: bool, said: int, tmp_path: Path
) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "passes")])
    environment = {**os.environ, "PYTHONPATH": paths, "REMAT_CACHE_DIR": str(tmp_path)}
    program = "import remat_compiler.backend\n" + PROGRAM.format(inner=inner, backend=backend, steps=steps)
    done = run_program(program, tmp_path, environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("memory_budget is not kept") == said


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0].square().mean()


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


class PartsWithoutGradients(nn.Module):
    """Only what is captured behind the break is compiled, and that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.largest = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = left_to_eager(self.inner, x)
        self.largest = found.detach().abs().amax().log1p()
        return found


@torch._dynamo.disable
def left_to_eager(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return inner(x).square().mean()


OPTIONS = {"memory_budget": "1MiB", "inner": "eager", "cost_model": "nominal"}


def compiled(made: Any) -> Any:
    return torch.compile(made, backend="remat", options=dict(OPTIONS))


def train(step: Any, steps: int = 3) -> None:
    for _ in range(steps):
        step(torch.randn(4, 5, 8)).backward()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The names of what the budget was said to have no effect on."""
    torch._dynamo.reset()

    def names() -> list[str]:
        found = (re.search(r"memory_budget is not kept for (.+), on which", text) for text in caplog.messages)
        return [one.group(1) for one in found if one]

    return names


def test_each_module_is_told_of_whatever_was_compiled_before(told: Callable[[], list[str]]) -> None:
    train(compiled(Dense()))
    assert told() == []
    train(compiled(Recurrent()))
    assert told() == ["Recurrent"]
    train(compiled(PartsWithoutGradients()))
    train(compiled(Recurrent()))
    assert told() == ["Recurrent", "PartsWithoutGradients", "Recurrent"]


def test_recurrent_layers_are_named_with_the_way_out(
    told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    train(compiled(Recurrent()))
    (text,) = [text for text in caplog.messages if "not kept" in text]
    assert "torch._dynamo.config.allow_rnn = True" in text
    assert "RNN, GRU, or LSTM" in text
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        train(compiled(Recurrent()))
    assert told() == ["Recurrent"]


def test_modules_compiled_in_place_are_told_of(told: Callable[[], list[str]]) -> None:
    planned, left = nn.Sequential(Dense()), nn.Sequential(Recurrent())
    for model in (planned, left):
        train(remat_compiler.compile(model, "1MiB", inner="eager", cost_model="nominal", quiet=True))
    assert told() == ["Sequential"]


def test_functions_are_told_of_by_their_name(told: Callable[[], list[str]]) -> None:
    model = Dense()

    def whole_step(x: torch.Tensor) -> None:
        left_to_eager(model.inner, x).backward()

    step = compiled(whole_step)
    for _ in range(3):
        step(torch.randn(4, 5, 8))
    assert [name.rpartition(".")[2] for name in told()] == ["whole_step"]


def test_steps_that_run_planned_graphs_are_not_told_of(told: Callable[[], list[str]]) -> None:
    model = Dense()

    def whole_step(x: torch.Tensor) -> None:
        loss = model(x)
        torch._dynamo.graph_break()
        loss.backward()

    step = compiled(whole_step)
    for _ in range(4):
        step(torch.randn(4, 5, 8))
    # Of the same class: Dynamo runs the code that it made for the first one.
    for _ in range(2):
        train(compiled(Dense()))
    block = compiled(nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    for _ in range(3):
        checkpoint(block, torch.randn(4, 8, requires_grad=True), use_reentrant=True).sum().backward()
    assert told() == []


def test_calls_without_gradients_are_not_told_of(told: Callable[[], list[str]]) -> None:
    model = Recurrent()
    step = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            step(torch.randn(4, 5, 8))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for length in (5, 6, 7):
        step(torch.randn(4, length, 8))
    assert told() == []
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    train(step)
    assert told() == ["Recurrent"]


class GivenUpLater(Dense):
    """Its input asks for a gradient from the second step on, when Dynamo leaves the broken loop to eager."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        x.requires_grad_()
        for _ in range(2):
            torch._dynamo.graph_break()
        return self.inner(y)


def test_a_module_that_is_given_up_as_it_is_traced_again_is_told_of(
    told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    step, x = compiled(GivenUpLater()), torch.randn(4, 5, 8)
    for _ in range(4):
        step(x).square().mean().backward()
    assert told() == ["GivenUpLater"]
    assert "since it was traced again" in caplog.text
