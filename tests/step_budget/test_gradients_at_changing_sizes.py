"""Where sizes change, gradients that are accumulated are planned for at each size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.observer import Observer, observed_by
from remat_compiler.units import format_bytes
from step_budget.test_gradients_before import MICRO_BATCHES, WIDTH, Model, gradient_bytes

SIZES = (256, 512, 384, 450)
STEPS = 2
TOLD = "gradients are there before the step"

pytestmark = [pytest.mark.usefixtures("compiles_anew"), pytest.mark.usual_effort]


def trained(
    budget: object, sizes: Sequence[int] = SIZES, steps: int = STEPS, *, breaks: bool = False
) -> tuple[list[int], Model]:
    """Peaks of the micro-batches of some steps, gradients from before each included, and the model."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    model = Model(breaks)
    options = {"inner": "eager", "cost_model": "nominal", "max_slowdown": None}
    call = remat_compiler.compile(model, memory_budget=budget, dynamic=True, **options)
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(size, WIDTH, generator=draw) for size in sizes]
    peaks = []
    for i in range(steps * MICRO_BATCHES):
        first = i % MICRO_BATCHES == 0
        if first:
            model.zero_grad()
        x = batches[i % len(batches)]
        own = measure_step(lambda: call(x).backward(), warmup=0).peak_bytes  # noqa: B023 - called at once
        peaks.append(own if first else own + gradient_bytes(model))
    return peaks, model


@cache
def peaks_without_a_budget(*, breaks: bool = False) -> list[int]:
    """Peaks of the micro-batches where everything is kept; the same in each test, since every run begins anew."""
    peaks, _ = trained("1GiB", breaks=breaks)
    return peaks


@cache
def smallest_peak() -> int:
    """The smallest peak of the first micro-batch of the largest of `SIZES`."""
    (smallest, *_), _ = trained("min", (512,), steps=1)
    return smallest


def assert_gradients_are_those_of_eager(model: Model, sizes: Sequence[int] = SIZES) -> None:
    plain, draw = Model(), torch.Generator().manual_seed(1)
    batches = [torch.randn(size, WIDTH, generator=draw) for size in sizes]
    for i in range((STEPS - 1) * MICRO_BATCHES, STEPS * MICRO_BATCHES):
        plain(batches[i % len(batches)]).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("part", [0.97, 0.9, 0.6])
def test_every_size_keeps_to_the_budget_beside_them(part: float, caplog: pytest.LogCaptureFixture) -> None:
    budget = int(part * max(peaks_without_a_budget()))
    peaks, model = trained(budget)
    # The first two micro-batches are those that show that gradients add up.
    assert max(peaks[2:]) <= budget
    assert any(report.added_ns for report in remat_compiler.reports())
    assert not any(TOLD in said for said in caplog.messages)
    assert_gradients_are_those_of_eager(model)


@pytest.mark.parametrize("part", [0.95, 0.8])
def test_several_graphs_share_what_they_leave_at_every_size(part: float, caplog: pytest.LogCaptureFixture) -> None:
    budget = int(part * max(peaks_without_a_budget(breaks=True)))
    made: list[Dispatch] = []

    class Watcher(Observer):
        def dispatch_made(self, dispatch: Dispatch) -> None:
            made.append(dispatch)

    with observed_by(Watcher()):
        peaks, model = trained(budget, breaks=True)
    assert max(peaks[3:]) <= budget
    # Whatever sizes come together: the second graph runs while the first one holds what the backward needs.
    first, second = (one.allowance for one in made)
    left_bytes = budget - gradient_bytes(model)
    assert first.limit_bytes <= left_bytes
    assert first.held_bytes + second.limit_bytes <= left_bytes
    assert first.spare_bytes == second.spare_bytes == gradient_bytes(model)
    assert not any(TOLD in said for said in caplog.messages)
    assert_gradients_are_those_of_eager(model)


def test_sizes_without_such_a_plan_take_the_smallest_peak_and_train_on(caplog: pytest.LogCaptureFixture) -> None:
    smallest, gradients = smallest_peak(), gradient_bytes(Model())
    # Enough for the largest size by itself, and for the others beside the gradients.
    budget = smallest + gradients * 3 // 5
    caplog.clear()
    peaks, model = trained(budget)
    over = {SIZES[i % len(SIZES)] for i, peak in enumerate(peaks[2:], 2) if peak > budget}
    assert over == {512}
    assert max(peaks[2:]) <= smallest + gradients
    (said,) = [said for said in caplog.messages if TOLD in said]
    assert "training goes on" in said
    assert f"memory_budget={format_bytes(budget)}; " in said
    assert "at x.shape[0] = 512" in said
    assert_gradients_are_those_of_eager(model)


def test_a_size_that_exceeds_the_budget_by_itself_is_refused() -> None:
    with pytest.raises(InfeasibleBudget):
        trained(smallest_peak() + gradient_bytes(Model()) // 2, (256, 256, 256, 900))
