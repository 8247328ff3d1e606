"""One budget for all graphs of a step whose sizes change: kept at every size, from the first step on, or refused."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from dry_run.steps import garbage_left
from instruments.measure import measure_step, train_step
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.observer import Observer, observed_by
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.step import Step
from remat_compiler.units import format_bytes
from step_budget.test_one_budget import WIDTH, Blocks, Broken, BrokenTwice, Tower, compile_model, equal, gradients

pytestmark = pytest.mark.usefixtures("made")

BUDGET = 1_400_000


class TwoModules(nn.Module):
    """Two modules in a row, each compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Half(last=False), Half(last=True)])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.blocks[1](self.blocks[0](x))
        return result


class Half(Tower):
    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x, 0, 3)
        return x.square().mean() if self.last else x


class FixedEnd(Tower):
    """The second graph is of one size whatever the length."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x, 0, 3)
        pooled = torch.stack([x.mean(0), x.amax(0)]).repeat(128, 1)
        torch._dynamo.graph_break()
        return self.part(pooled, 3, 6).square().mean()


class BreakAtTheEnd(Tower):
    """Ends at a graph break behind which nothing is trained."""

    def forward(self, x: Tensor) -> Tensor:
        loss = self.part(x, 0, 6).square().mean()
        torch._dynamo.graph_break()
        return loss


@pytest.fixture(autouse=True)
def first_peaks() -> Iterator[list[int]]:
    """For each step after which the budget was shared out, its own peak as predicted."""
    found: list[int] = []

    class Watcher(Observer):
        def step_completes(self, step: Step[CompiledGraph]) -> None:
            memories = [memory for memory in (graph.memory_now for graph in step.graphs) if memory is not None]
            assert len(memories) == len(step.graphs)
            found.append(whole_step_peak(memories, step.calls, step.turns))

    with observed_by(Watcher()):
        yield found


def batch(length: int) -> Tensor:
    """An input whose length changes."""
    x = torch.randn(length, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def served(model: nn.Module, made: Sequence[Dispatch], lengths: Sequence[int], budget: int) -> list[int]:
    """The lengths that were trained on, each with eager's gradients and within the budget; the others were refused."""
    found = []
    eager = type(model)()
    eager.load_state_dict(model.state_dict())
    for length in lengths:
        x = batch(length)
        try:
            gradients(model, x)
            for one in made:  # the allocator is not watched while variants are compiled
                one.prepare((length,))
        except InfeasibleBudget:
            continue
        measured = measure_step(train_step(model, {"x": x}), steps=1, warmup=0)
        assert measured.peak_bytes <= budget, length
        assert equal(gradients(eager, x), gradients(model, x))
        found.append(length)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Broken, BrokenTwice, TwoModules])
def test_no_length_ever_exceeds_the_budget(
    kind: type[nn.Module], made: list[Dispatch], first_peaks: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(4)
    model = kind()
    compile_model(model, BUDGET, dynamic=None, on_infeasible="error")
    lengths = [256, *(rng.randint(32, 540) for _ in range(7)), 540]
    assert served(model, made, lengths, BUDGET) == lengths
    assert max(first_peaks) <= BUDGET
    used = [use.variant for one in made for use in one.uses]
    assert {variant.added == 0 for variant in used} == {True, False}
    assert "each of them only" not in caplog.text
    refused = 20_000
    assert served(model, made, [refused, 100], BUDGET) == [100]


@pytest.mark.parametrize("budget", [300_000, 860_000])
def test_what_cannot_fit_is_refused_in_the_first_step(budget: int, made: list[Dispatch]) -> None:
    """The first graph alone, or only the second one beside what the first one holds."""
    model = Broken()
    # Which plan is found follows the rates of operators, which are measured on each machine.
    compile_model(model, budget, dynamic=None, on_infeasible="error", cost_model="nominal")
    with pytest.raises(InfeasibleBudget, match="smallest reachable peak") as refused:
        gradients(model, batch(512))
    assert ("what 1 graphs hold" in str(refused.value)) == (budget == 860_000)
    assert len(made) == (budget == 860_000)


@pytest.mark.slow
def test_on_request_the_smallest_peak_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Broken(), batch(512)
    expected = gradients(model, x)
    compile_model(model, 400_000, dynamic=None, on_infeasible="min")
    assert [equal(expected, gradients(model, x)) for _ in range(3)] == [True] * 3
    assert f"no plan fits memory_budget={format_bytes(400_000)}" in caplog.text


@pytest.mark.slow
def test_a_graph_of_one_size_beside_one_that_changes(made: list[Dispatch], first_peaks: list[int]) -> None:
    model = FixedEnd()
    compile_model(model, BUDGET, dynamic=None, on_infeasible="error")
    lengths = [256, 60, 400, 512, 300]
    assert served(model, made, lengths, BUDGET) == lengths
    assert len(made) == 1
    assert max(first_peaks) <= BUDGET


def test_a_graph_that_is_called_again_and_again(made: list[Dispatch]) -> None:
    """Equal blocks, each compiled by itself, are one graph with calls that hold something each."""
    model = Blocks()
    compile_model(model, 2 * BUDGET, dynamic=None, on_infeasible="error")
    for length in (128, 300, 64, 200):
        x = batch(length)
        gradients(model, x)
        eager_bytes = 2 * x.nbytes  # the first layer and the loss are not compiled
        assert measure_step(train_step(model, {"x": x})).peak_bytes <= 2 * BUDGET + eager_bytes
    (one,) = made
    assert 4 * one.allowance.held_bytes <= 2 * BUDGET


@pytest.mark.parametrize("kind", [Tower, BreakAtTheEnd])
def test_a_graph_that_is_alone_has_the_whole_budget(kind: type[nn.Module], made: list[Dispatch]) -> None:
    model = kind()
    compile_model(model, BUDGET, dynamic=None)
    for length in (150, 100, 200):
        gradients(model, batch(length))
    (one,) = made
    assert one.allowance.is_whole
    assert one.limit_bytes == BUDGET
    assert {use.variant.added for use in one.uses} == {0.0}
    if kind is Tower:
        assert [variant.label for variant in one.variants] == ["first"]


def test_what_only_waits_for_the_garbage_collector_holds_no_part_of_the_budget(made: list[Dispatch]) -> None:
    model = Tower()
    compile_model(model, BUDGET, dynamic=None)
    cycle: list[object] = [model(batch(150))]
    cycle.append(cycle)
    with garbage_left():
        del cycle
        for length in (150, 100, 200, 100, 150):
            gradients(model, batch(length))
    (one,) = made
    assert one.allowance.is_whole
    assert one.limit_bytes == BUDGET


@pytest.mark.slow
def test_a_step_that_was_given_up_tells_nothing(made: list[Dispatch]) -> None:
    """Its forwards ran without a backward: a look at shapes, or an error in the loss."""
    model = Broken()
    compile_model(model, BUDGET, dynamic=None, on_infeasible="error")
    for length in (200, 300):
        loss = model(batch(length))
        del loss
        gc.collect()
    lengths = [200, 520, 90, 400]
    assert served(model, made, lengths, BUDGET) == lengths


class Logits(Tower):
    """Leaves the loss to the caller."""

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, 6)


@pytest.mark.parametrize("marked", [False, True])
def test_a_model_whose_loss_is_outside_has_the_whole_budget(marked: bool, made: list[Dispatch]) -> None:
    """Where everything fits nothing is recomputed, though other graphs may be behind one that returns no loss."""
    model = Logits()
    inputs = {length: batch(length) if marked else torch.randn(length, WIDTH) for length in (200, 190, 180, 170)}
    eager = measure_step(lambda: model(inputs[200]).square().mean().backward()).peak_bytes
    compile_model(model, int(1.2 * eager), dynamic=None, on_infeasible="error")
    for x in inputs.values():
        loss = model(x).square().mean()
        loss.backward()
        del loss
    (one,) = made
    assert one.allowance.is_whole
    assert [use.variant.added for use in one.uses[-2:]] == [0.0, 0.0]
    assert len(one.variants) == 1 or marked
    gc.collect()
    assert not [graph for graph in COORDINATOR.unsettled_graphs() if graph.budget_bytes == int(1.2 * eager)]


def test_what_a_model_holds_is_not_taken_off_the_budget_of_another(made: list[Dispatch]) -> None:
    models, budgets = [Logits(), Tower()], [BUDGET, BUDGET // 2]
    losses = []
    for model, budget in zip(models, budgets):
        compile_model(model, budget, dynamic=None, on_infeasible="error")
        losses.append(model(batch(150)).square().mean())
    assert [one.limit_bytes for one in made] == budgets
    torch.stack(losses).sum().backward()


@pytest.mark.slow
def test_inductor_keeps_to_the_budget(made: list[Dispatch], first_peaks: list[int]) -> None:
    model = Broken()
    compile_model(model, BUDGET, dynamic=None, inner="inductor", on_infeasible="error")
    for length in (256, 500, 100):
        x = batch(length)
        gradients(model, x)
        for one in made:
            one.prepare((length,))
        assert measure_step(train_step(model, {"x": x}), warmup=0).peak_bytes <= BUDGET
    assert max(first_peaks) <= BUDGET


@pytest.mark.slow
def test_a_graph_that_was_planned_for_one_size_beside_a_new_one_of_changing_sizes(made: list[Dispatch]) -> None:
    """Dynamo takes the first length as fixed: the graph behind was given nearly all of the budget, and stays."""
    model, budget = FixedEnd(), 800_000
    compile_model(model, budget, dynamic=None, on_infeasible="error")
    gradients(model, torch.randn(48, WIDTH))
    gradients(model, torch.randn(48, WIDTH))
    found = []
    for length in (200, 100, 360, 64):
        x = torch.randn(length, WIDTH)
        try:
            gradients(model, x)
            gradients(model, x)
        except InfeasibleBudget:
            continue
        assert measure_step(train_step(model, {"x": x}), warmup=0).peak_bytes <= budget
        found.append(length)
    assert len(made) == 1
    assert {100, 64} <= set(found)
