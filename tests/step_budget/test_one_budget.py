"""One budget for all graphs of a step: kept from the first step on, predicted to the byte, with eager's gradients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from instruments.measure import measure_step, train_step
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.graph_levels import GraphLevels
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.step import Step

WIDTH, BATCH = 64, 512
LOOSE, TIGHT, IMPOSSIBLE = 4_000_000, 1_400_000, 400_000
"""Bytes: everything fits; the step needs some recomputation; not even the smallest peak fits."""


pytestmark = pytest.mark.usefixtures("compiles_anew")


class Tower(nn.Module):
    """Six layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])

    def part(self, x: Tensor, first: int, last: int) -> Tensor:
        for i in range(first, last):
            x = F.dropout(F.gelu(self.layers[i](x)), 0.1)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, 6).square().mean()


class Broken(Tower):
    """Two graphs."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x, 0, 3)
        torch._dynamo.graph_break()
        return self.part(x, 3, 6).square().mean()


class BrokenTwice(Tower):
    """Three graphs; the last one reads the result of the first, too."""

    def forward(self, x: Tensor) -> Tensor:
        start = self.part(x, 0, 2)
        torch._dynamo.graph_break()
        x = self.part(start, 2, 4)
        torch._dynamo.graph_break()
        return (self.part(x, 4, 6) + start).square().mean()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.down(F.gelu(self.up(x))))


class Blocks(nn.Module):
    """Equal blocks, each compiled by itself: one graph, called four times in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.fixture
def decided() -> Iterator[list[tuple[int, int]]]:
    """For each complete step of several graphs, the predicted peak as the step ran, and as the next ones will."""
    found: list[tuple[int, int]] = []

    def peak(step: Step[CompiledGraph]) -> int:
        memories = [graph.memory for graph in step.graphs]
        known = [memory for memory in memories if memory is not None]
        return whole_step_peak(known, step.calls, step.turns) if len(known) == len(memories) else -1

    class Watcher(Observer):
        before = 0

        def step_completes(self, step: Step[CompiledGraph]) -> None:
            self.before = peak(step)

        def step_decided(self, step: Step[CompiledGraph]) -> None:
            if len(step.calls) > 1:
                found.append((self.before, peak(step)))

    with observed_by(Watcher()):
        yield found


@pytest.fixture
def compilations() -> Iterator[list[int | None]]:
    """The budget of each compilation."""
    found: list[int | None] = []

    class Watcher(Observer):
        def attempt_begins(self, request: PartitionRequest) -> None:
            found.append(request.budget_bytes)

    with observed_by(Watcher()):
        yield found


def compile_model(model: nn.Module, budget: object, *, dynamic: bool | None = False, **others: object) -> None:
    """Compile in place: each block by itself, or the whole."""
    options: dict[str, Any] = {"memory_budget": budget, "inner": "eager", "max_slowdown": None, **others}
    for part in getattr(model, "blocks", [model]):
        part.compile(backend=remat, options=options, dynamic=dynamic)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Loss and gradients of a step from the same random state."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = model(x)
    torch.autograd.backward(loss)
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def equal(expected: list[Tensor], found: list[Tensor]) -> bool:
    return len(expected) == len(found) and all(torch.equal(a, b) for a, b in zip(expected, found))


def peak_of(model: nn.Module, x: Tensor) -> int:
    """Measured peak of a step, once everything is settled."""
    measured = measure_step(train_step(model, {"x": x}), steps=2)
    assert measured.repeatable
    return measured.peak_bytes


def unbudgeted_peak(kind: type[nn.Module], x: Tensor) -> int:
    model = kind()
    compile_model(model, 1.0)
    peak = peak_of(model, x)
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    return peak


@pytest.mark.parametrize("budget", [LOOSE, 1_700_000, TIGHT])
@pytest.mark.parametrize("kind", [Broken, BrokenTwice])
def test_the_budget_holds_for_the_whole_step_from_the_first_on(
    kind: type[nn.Module], budget: int, decided: list[tuple[int, int]]
) -> None:
    model, x = kind(), torch.randn(BATCH, WIDTH)
    expected = gradients(model, x)
    compile_model(model, budget)
    assert [equal(expected, gradients(model, x)) for _ in range(4)] == [True] * 4
    ((first, later),) = decided
    assert first <= budget
    measured = peak_of(model, x)
    assert measured <= later <= budget
    if kind is Broken:
        assert measured == later
    assert len(decided) == 1
    reports = remat_compiler.reports()
    assert [report.step for report in reports] == [StepFigures(len(reports), later, budget)] * len(reports)
    assert (sum(report.added_ns for report in reports) == 0) == (budget == LOOSE)


@pytest.mark.slow
def test_inductor_shares_a_budget(decided: list[tuple[int, int]]) -> None:
    model, x = Broken(), torch.randn(BATCH, WIDTH)
    compile_model(model, TIGHT, inner="inductor")
    for _ in range(3):
        gradients(model, x)
    ((first, later),) = decided
    assert first <= TIGHT
    assert peak_of(model, x) == later <= TIGHT


def test_blocks_that_are_compiled_one_by_one(decided: list[tuple[int, int]]) -> None:
    """One graph, called once a block: each call holds what it saved until the backward comes back to it."""
    x = torch.randn(BATCH, WIDTH)
    everything = unbudgeted_peak(Blocks, x)
    model, budget = Blocks(), int(0.7 * everything)
    expected = gradients(model, x)
    decided.clear()
    compile_model(model, budget)
    assert [equal(expected, gradients(model, x)) for _ in range(4)] == [True] * 4
    ((_, later),) = decided
    assert later <= budget
    # The first layer and the loss are not compiled: what they hold is outside of what is planned.
    eager_bytes = 2 * x.nbytes
    assert peak_of(model, x) <= later + eager_bytes


def test_a_fraction_is_one_of_the_whole_step(decided: list[tuple[int, int]]) -> None:
    x = torch.randn(BATCH, WIDTH)
    everything = unbudgeted_peak(Broken, x)
    decided.clear()
    model = Broken()
    compile_model(model, 0.7)
    assert peak_of(model, x) <= 0.7 * everything
    assert len(decided) == 1


class Varied(Tower):
    """Two graphs; the simulator takes the first one's peak without a budget to be more than it is."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.layers[0](x))
        y = x.exp()
        x = y * x.amax(-1, keepdim=True) + y.var()
        torch._dynamo.graph_break()
        return self.part(x, 1, 2).square().mean()


def test_a_fraction_is_one_of_what_is_emitted() -> None:
    limits = []
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    for budget in (1.0, 0.9):
        model = Varied()
        compile_model(model, budget)
        for _ in range(2):
            x.grad = None  # from before the step, it would count in its peak
            gradients(model, x)
        figures = remat_compiler.reports()[-1].step
        assert figures is not None
        assert figures.limit_bytes is not None
        limits.append(figures.limit_bytes)
    whole, part = limits
    assert part == int(0.9 * whole)


@pytest.mark.parametrize(("budget", "planned"), [("1GiB", 0), (0.7, 2)])
def test_graphs_that_fit_together_are_not_planned(
    budget: object, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = GraphLevels.all
    monkeypatch.setattr(GraphLevels, "all", lambda one, **how: (asked.append(one), original(one, **how))[1])
    model, x = Broken(), torch.randn(BATCH, WIDTH)
    compile_model(model, budget)
    for _ in range(3):
        gradients(model, x)
    assert len(asked) == planned


def test_an_impossible_budget_names_the_smallest_peak_of_all_graphs_together() -> None:
    model, x = Broken(), torch.randn(BATCH, WIDTH)
    compile_model(model, IMPOSSIBLE)
    gradients(model, x)
    with pytest.raises(InfeasibleBudget, match="2 graphs of the step together") as refused:
        gradients(model, x)
    smallest = refused.value.smallest_peak_bytes
    torch._dynamo.reset()
    model = Broken()
    compile_model(model, smallest)
    assert peak_of(model, x) <= smallest


def test_on_request_the_smallest_peak_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Broken(), torch.randn(BATCH, WIDTH)
    expected = gradients(model, x)
    compile_model(model, IMPOSSIBLE, on_infeasible="min")
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        assert [equal(expected, gradients(model, x)) for _ in range(3)] == [True] * 3
    assert len([m for m in caplog.messages if "the 2 graphs of the step together peak at" in m]) == 1


def test_modules_with_budgets_of_their_own_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    first, second, x = Tower(), Tower(), torch.randn(BATCH, WIDTH)
    compile_model(first, LOOSE)
    compile_model(second, 1_500_000)
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        for _ in range(2):
            (first(x) + second(x)).backward()
    (warned,) = [m for m in caplog.messages if "was kept for each of them only" in m]
    assert "their options differ" in warned


def test_a_step_of_one_graph_is_compiled_once(compilations: list[int | None]) -> None:
    model, x = Tower(), torch.randn(BATCH, WIDTH)
    compile_model(model, LOOSE)
    for _ in range(3):
        gradients(model, x)
    assert compilations == [LOOSE]
    (report,) = remat_compiler.reports()
    assert report.step is None


def test_what_was_shared_is_remembered(compilations: list[int | None]) -> None:
    x = torch.randn(BATCH, WIDTH)
    peaks = []
    for _ in range(2):
        torch._dynamo.reset()
        compilations.clear()
        torch.manual_seed(0)
        model = Broken()
        compile_model(model, 1_700_000)
        peaks.append(peak_of(model, x))
    assert peaks[0] == peaks[1]
    assert len(compilations) == 2


def test_models_that_take_turns_do_not_share(decided: list[tuple[int, int]], compilations: list[int | None]) -> None:
    first, second, x = Tower(), Tower(), torch.randn(BATCH, WIDTH)
    compile_model(first, LOOSE)
    compile_model(second, LOOSE)
    for _ in range(3):
        gradients(first, x)
        gradients(second, x)
    assert decided == []
    assert compilations == [LOOSE] * len(compilations)
