"""What one step taught is not trusted for good: later steps that differ are noticed, and keep to the budget."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from instruments.measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_model.split import Split
from remat_compiler.units import format_bytes
from versions import DENSE_GRADIENTS

WIDTH, BATCH = 64, 512
ONE = BATCH * WIDTH * 4
"""Bytes of one activation."""


pytestmark = pytest.mark.usefixtures("compiles_anew")


def tower(layers: int = 8) -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def compiled(model: nn.Module, budget: object, *, dynamic: bool = False) -> Callable[[Tensor], Tensor]:
    options: Any = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal", "max_slowdown": None}
    found: Callable[[Tensor], Tensor] = torch.compile(model, backend=remat, dynamic=dynamic, options=options)
    return found


def peak_of(step: Callable[[], None], *models: nn.Module) -> int:
    """Measured peak of one step from no gradients on."""

    def once() -> None:
        for model in models:
            model.zero_grad(set_to_none=True)
        step()

    return measure_step(once, steps=1, warmup=0).peak_bytes


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, WIDTH)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "profiler" not in r.getMessage()]


@pytest.mark.slow
def test_a_graph_that_was_alone_is_called_twice_later(x: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    model, budget = tower(), int(8.5 * ONE)
    f = compiled(model, budget)
    eager = [p.clone() for p in torch.autograd.grad((model(x) * model(-x)).sum(), list(model.parameters()))]
    alone = [peak_of(lambda: f(x).sum().backward(), model) for _ in range(2)]
    assert warnings_in(caplog) == []
    first, *later = [peak_of(lambda: (f(x) * f(-x)).sum().backward(), model) for _ in range(3)]
    assert max(alone) <= budget < first
    (warned,) = warnings_in(caplog)
    assert f"memory_budget={format_bytes(budget)}" in warned
    assert max(later) <= budget
    assert all(torch.allclose(a, p.grad) for a, p in zip(eager, model.parameters()) if p.grad is not None)
    assert max(peak_of(lambda: f(x).sum().backward(), model) for _ in range(2)) <= budget


@pytest.mark.slow
def test_a_graph_of_changing_sizes_that_was_alone_is_called_twice_later(
    x: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model, budget = tower(), 10 * ONE
    f = compiled(model, budget, dynamic=True)
    alone = [peak_of(lambda: f(x).sum().backward(), model) for _ in range(2)]
    first, *later = [peak_of(lambda: (f(x) * f(-x)).sum().backward(), model) for _ in range(3)]
    assert max(*alone, *later) <= budget
    assert first <= budget or f"memory_budget={format_bytes(budget)}" in caplog.text


def test_a_refused_step_is_refused_again_and_others_go_on(x: Tensor) -> None:
    model, budget = tower(), int((5.2 + DENSE_GRADIENTS) * ONE)
    f = compiled(model, budget)
    for _ in range(2):
        f(x).sum().backward()
    step = lambda: (f(x) * f(-x)).sum().backward()  # noqa: E731
    step()
    for _ in range(3):
        with pytest.raises(InfeasibleBudget, match="2 calls of a graph in a step together"):
            step()
    assert peak_of(lambda: f(x).sum().backward(), model) <= budget


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_sharing_that_was_broken_off_is_tried_again(
    error: type[BaseException], x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, budget = tower(), int(8.5 * ONE)
    f = compiled(model, budget)

    def broken_off(*_: object) -> None:
        raise error

    def step() -> None:
        (f(x) * f(-x)).sum().backward()

    step()
    with monkeypatch.context() as patched:
        patched.setattr(Split, "within", broken_off)
        for _ in range(2):
            with pytest.raises(error):
                step()
    assert max(peak_of(step, model) for _ in range(2)) <= budget


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_an_output_that_is_kept_does_not_keep_steps_open(
    other: bool, x: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    """A prediction that was logged with its graph, of the model that is trained or of another one."""
    a, b, c = tower(6), tower(6), tower(6)
    budget = int(8.5 * ONE)
    f, g, h = (compiled(model, budget) for model in (a, b, c))

    def step() -> None:
        g(f(x)).sum().backward()

    kept = [(h if other else f)(x)]
    peaks = [peak_of(step, a, b) for _ in range(6)]
    assert max(peaks[4 if other else 1 :]) <= budget < peaks[0]
    assert any("still held" in warned for warned in warnings_in(caplog))
    for _ in range(8):
        step()
    assert len(COORDINATOR.watch.current.step.calls) < 6
    kept.clear()
    gc.collect()
    assert max(peak_of(step, a, b) for _ in range(3)) <= budget


@pytest.mark.slow
def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """One entry for each call from now on."""
    calls: list[None] = []
    original = getattr(owner, name)

    def count(*arguments: Any, **keywords: Any) -> Any:
        calls.append(None)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, count)
    return calls


@pytest.mark.parametrize("own", [True, False], ids=["of the trained graph", "of a graph of its own"])
def test_a_kept_output_costs_the_steps_to_come_nothing(own: bool, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned_graphs()
    f, g = compiled(tower(), "64MiB"), compiled(tower(6), "64MiB")
    for _ in range(4):
        f(x).sum().backward()
    kept = (f if own else g)(x)
    for _ in range(8):
        f(x).sum().backward()
    decided, collected = counted(monkeypatch, COORDINATOR, "decide"), counted(monkeypatch, gc, "collect")
    (graph,) = (one for one in planned_graphs() if one.steps and one not in before)
    for _ in range(8):
        f(x).sum().backward()
    assert not decided
    assert not collected
    assert not COORDINATOR.unsettled_graphs()
    assert len(graph.steps) <= 2
    kept.sum().backward()
    f(x).sum().backward()
    assert not COORDINATOR.unsettled_graphs()


def test_a_graph_that_was_left_out_is_watched_again_when_it_runs(x: Tensor) -> None:
    before = planned_graphs()
    f, g = compiled(tower(), "64MiB"), compiled(tower(6), "64MiB")
    kept = g(x)
    for _ in range(8):
        f(x).sum().backward()
    assert not COORDINATOR.unsettled_graphs()
    del kept
    g(x).sum().backward()
    g(x).sum().backward()
    assert [bool(one.steps) for one in planned_graphs() if one not in before] == [True, True]


def planned_graphs() -> list[CompiledGraph]:
    return [one for one in gc.get_objects() if type(one) is CompiledGraph]


def test_a_generator_that_waits_for_its_critic_is_of_one_step(x: Tensor) -> None:
    """Its call is open while the critic is trained, and belongs to the step all the same."""
    maker, critic = tower(4), tower(4)
    budget = 12 * ONE
    f, g = compiled(maker, budget), compiled(critic, budget)
    found = []

    def step() -> None:
        made = f(x)
        g(made.detach()).sum().backward()
        g(made).sum().backward()
        found.append([len(graph.steps) for graph in COORDINATOR.unsettled_graphs()])

    step()
    assert max(peak_of(step, maker, critic) for _ in range(3)) <= budget
    assert found[-1] == []


@pytest.mark.slow
def test_two_kinds_of_steps_keep_to_the_budget_in_turns(x: Tensor) -> None:
    model, budget = tower(), int(8.5 * ONE)
    f = compiled(model, budget)

    def alone() -> None:
        f(x).sum().backward()

    def twice() -> None:
        (f(x) * f(-x)).sum().backward()

    for step in (alone, twice, alone, twice):
        step()
    made = [graph for graph in gc.get_objects() if type(graph) is CompiledGraph and graph.budget_bytes == budget]
    before = [graph.compiled for graph in made]
    for step in (alone, twice) * 3:
        assert peak_of(step, model) <= budget
    assert [graph.compiled for graph in made] == before


def test_a_graph_that_is_kept_for_another_backward_counts(x: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    model = tower()
    budget = int(7.5 * ONE)
    f = compiled(model, budget)

    def twice() -> None:
        loss = f(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    peaks = [peak_of(twice, model) for _ in range(3)]
    assert peaks[0] > budget, "the first step need not be kept within the budget, or nothing is shown"
    assert len([text for text in warnings_in(caplog) if "may have taken" in text]) == 1
    assert max(peaks[1:]) <= budget


@pytest.mark.parametrize("slack_bytes", [40_000, 160_000])
def test_gradients_that_are_accumulated_are_within_the_budget(
    slack_bytes: int, x: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    model = tower()
    gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    budget = 5 * ONE + gradient_bytes + slack_bytes
    f = compiled(model, budget)

    def accumulated() -> None:
        for _ in range(2):
            f(x).sum().backward()

    for _ in range(2):
        accumulated()
    assert peak_of(accumulated, model) <= budget
    # Of the step that first finds them.
    (said,) = [text for text in warnings_in(caplog) if "gradients of" in text]
    assert "later steps are planned beside them" in said


def test_accumulation_is_told_of_while_an_output_of_another_model_is_kept(
    x: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    """So that no step of the model is known yet."""
    kept = compiled(tower(), 10**9)(x)
    model = tower()
    budget = 5 * ONE + sum(4 * parameter.numel() for parameter in model.parameters()) + 40_000
    f = compiled(model, budget)
    for _ in range(2):
        f(x).sum().backward()
    assert kept.grad_fn is not None
    assert [text for text in warnings_in(caplog) if "gradients of" in text]
