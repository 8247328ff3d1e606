"""What a step of several graphs compiles: each graph once where its first plan holds, and nothing that is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler.backend import remat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.observer import Observer, observed_by
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.graph_levels import level_without_budget
from remat_compiler.step_model.step import Step

WIDTH, BATCH, FRACTION = 64, 512, 0.8

pytestmark = pytest.mark.usefixtures("compiles_anew")


class InTwo(nn.Module):
    """A graph that saves much, and one after it that saves little."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * torch.sigmoid(x)
        torch._dynamo.graph_break()
        return self.last(x).mean()


class Seen(Observer):
    """The compilations, and the graphs of the steps that were decided about."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.graphs: list[CompiledGraph] = []

    def attempt_ends(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def step_completes(self, step: Step[CompiledGraph]) -> None:
        self.graphs = list(step.graphs)

    def taken(self) -> list[Attempt]:
        """The compilations since this was last asked."""
        taken, self.attempts = self.attempts, []
        return taken


@pytest.fixture
def seen() -> Iterator[Seen]:
    watcher = Seen()
    with observed_by(watcher):
        yield watcher


def compiled(model: nn.Module, budget: object = FRACTION) -> nn.Module:
    options = {"memory_budget": budget, "inner": "eager", "max_slowdown": None}
    model.compile(backend=remat, options=options, dynamic=False)
    return model


def step(model: nn.Module, x: Tensor, *, drops: bool = True) -> None:
    if drops:
        model.zero_grad(set_to_none=True)
    torch.autograd.backward(model(x))


def test_a_fraction_is_one_of_the_emitted_step_from_the_first_compilation_on(seen: Seen) -> None:
    model, x = compiled(InTwo()), torch.randn(BATCH, WIDTH)
    step(model, x)
    first = seen.taken()
    assert [one.request.budget_bytes is None for one in first] == [True, False] * 2
    for whole, part in zip(first[::2], first[1::2]):
        assert part.request.budget_bytes == int(FRACTION * whole.check.peak_bytes)
    # Together they fit by now, so that all of it stays.
    step(model, x)
    step(model, x)
    assert not seen.taken()
    assert [graph.native for graph in seen.graphs] == [one.check.memory for one in first[::2]]
    figures = remat_compiler.reports()[-1].step
    assert figures is not None
    assert figures.peak_bytes is not None
    assert figures.limit_bytes is not None
    assert figures.peak_bytes <= figures.limit_bytes


def test_the_next_process_knows_what_the_step_takes_without_a_budget(seen: Seen) -> None:
    x = torch.randn(BATCH, WIDTH)
    for again in (False, True):
        torch._dynamo.reset()
        model = compiled(InTwo())
        for _ in range(3):
            step(model, x)
        made = seen.taken()
        assert len(made) == (2 if again else 4)
    assert all(one.request.budget_bytes is not None for one in made)


def test_graphs_of_an_evaluation_are_compiled_once(seen: Seen) -> None:
    model, x = compiled(InTwo()), torch.randn(BATCH, WIDTH)
    with torch.no_grad():
        model(x)
    assert [one.trains for one in seen.taken()] == [False] * 2


def test_a_later_decision_compiles_only_what_it_changes(seen: Seen) -> None:
    model, x = compiled(InTwo()), torch.randn(BATCH, WIDTH)
    for _ in range(2):
        step(model, x)
    before = [graph.figures for graph in seen.graphs]
    seen.taken()
    # Gradients that are kept are beside the step: its graphs, which are known, are planned for what they leave.
    for _ in range(3):
        step(model, x, drops=False)
    assert len(seen.taken()) <= 1
    assert all(one is not None for one in before)


def test_a_graph_that_is_as_good_as_without_a_budget_stays(seen: Seen) -> None:
    model, x = compiled(InTwo()), torch.randn(BATCH, WIDTH)
    for _ in range(2):
        step(model, x)
    large, small = seen.graphs
    assert small.added_ns == 0
    level = level_without_budget(small)
    assert level.is_present
    seen.taken()
    assert small.plans.compiled_at(small, level, real=True) is small.attempt
    assert not seen.taken()
    # It recomputes, so that another compilation would be the faster one.
    assert large.added_ns > 0
    assert not level_without_budget(large).is_present


def test_the_seconds_of_plans_that_only_share_the_budget_are_counted() -> None:
    model, x = compiled(InTwo(), 0.5), torch.randn(BATCH, WIDTH)
    step(model, x)
    remat_compiler.reset_stats()
    step(model, x)
    found = remat_compiler.stats()
    assert found.solves > 0
    assert found.planning_s > 0.0
