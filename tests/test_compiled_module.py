"""Modules compiled in place: they stay what they are, and keep their budget, containers of torch included."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler.compiled_module import PATIENCE
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.observer import Observer, observed_by
from remat_compiler.units import format_bytes

OPTIONS: dict[str, Any] = {"inner": "eager", "cost_model": "nominal", "max_slowdown": None}


class Own(nn.Module):
    """A module with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.layers(x) * scale


def layers() -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))))


class Requests(Observer):
    def __init__(self) -> None:
        self.count = 0

    def attempt_begins(self, request: Any) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def requests(monkeypatch: pytest.MonkeyPatch, steps_of_its_own: None) -> Iterator[Requests]:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
    with observed_by(seen := Requests()):
        yield seen


def trained(model: nn.Module, steps: int = 3) -> list[Tensor]:
    """Gradients of some steps, added up."""
    for seed in range(steps):
        model(torch.randn(64, 16, generator=torch.Generator().manual_seed(seed))).sum().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


@pytest.mark.parametrize("make", [Own, layers], ids=["own forward", "container of torch"])
def test_a_module_stays_what_it_is_and_keeps_its_budget(
    make: Any, requests: Requests, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make()
    model.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    model.register_forward_hook(lambda _, given, result: result * given[0])
    twin, names = copy.deepcopy(model), list(model.state_dict())
    signature, kind = inspect.signature(model.forward), type(model)
    assert remat_compiler.compile(model, 0.75, **OPTIONS) is model
    for expected, found in zip(trained(twin), trained(model), strict=True):
        assert torch.allclose(expected, found, atol=1e-6)
    assert requests.count > 0, "the backend was never asked"
    assert (type(model), list(model.state_dict()), inspect.signature(model.forward)) == (kind, names, signature)
    planned = remat_compiler.reports()
    # torch runs the hooks of a compiled module around its graph, and those of its own containers within.
    assert len(planned) == (2 if make is Own else 1)
    assert any(one.added_ns > 0 for one in planned)
    assert all(one.budget_bytes is None or one.peak_bytes <= one.budget_bytes for one in planned)
    # Named as in the model, although it is a method of it that Dynamo is given.
    modules = {live.made_by.module for one in planned for live in one.live_at_peak}
    assert any(modules)
    assert all(dict(model.named_modules()).get(name) is not None for name in modules)
    # Told once, after the first step.
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"remat: {kind.__name__} runs {'2 graphs' if make is Own else '1 graph'}, peak ")
    trained(model)
    assert capsys.readouterr().err == ""


def test_copies_and_pickles_are_not_compiled(requests: Requests) -> None:
    model = remat_compiler.compile(Own(), 0.75, quiet=True, **OPTIONS)
    trained(model)
    before = requests.count
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.zero_grad()
        trained(other)
    assert requests.count == before


def test_nothing_is_told_where_one_wants_to_hear_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    trained(remat_compiler.compile(Own(), 0.75, quiet=True, **OPTIONS))
    assert remat_compiler.reports()
    assert capsys.readouterr().err == ""


def test_the_budget_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_MEMORY_BUDGET", "0.75")
    trained(remat_compiler.compile(Own(), quiet=True, **OPTIONS))
    (report,) = remat_compiler.reports()
    assert report.added_ns > 0


def test_what_is_wrong_shows_before_the_first_step() -> None:
    with pytest.raises(OptionError, match=r"got model=function; allowed is a torch\.nn\.Module"):
        remat_compiler.compile(layers)  # type: ignore[type-var]
    with pytest.raises(OptionError, match="-3"):
        remat_compiler.compile(layers(), "-3")
    with pytest.raises(OptionError, match="memory_bugdet"):
        remat_compiler.compile(layers(), memory_bugdet="1GiB")
    with pytest.raises(UnknownName, match="autos"):
        remat_compiler.compile(layers(), "1GiB", planner="autos")


def said_by(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if " runs " in line]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_line_tells_the_step_and_the_budget_that_was_asked_for(
    calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However often a step calls the module: no graph's share of the budget, and no peak of one call."""
    model = remat_compiler.compile(Own(), "1GiB", **OPTIONS)
    for _ in range(3):
        sum(model(torch.randn(64, 16)).square().mean() for _ in range(calls)).backward()
        model.zero_grad()
    (line,) = said_by(capsys)
    report = remat_compiler.reports()[-1]
    peak = report.peak_bytes if report.step is None else report.step.peak_bytes
    assert (report.step is None) == (calls == 1)
    assert f"peak {format_bytes(peak)} of 1.0 GiB, " in line


def test_a_step_that_never_ends_is_told_as_what_there_is_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    model = remat_compiler.compile(Own(), "1GiB", **OPTIONS)
    held = [model(torch.randn(8, 16)) for _ in range(PATIENCE + 1)]
    (line,) = said_by(capsys)
    assert "runs 1 graph so far, which do not share the budget yet: the largest peak of one is " in line
    assert " of 1.0 GiB; " in line
    assert held
