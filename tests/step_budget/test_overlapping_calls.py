"""Micro-batches of which several are under way at once: one step, predicted to the byte and within its budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.backend import remat

WIDTH, ROWS = 32, 256
pytestmark = pytest.mark.usefixtures("compiles_anew")

ORDERS = {
    "first in, first out": "fff012",
    "last in, first out": "fff210",
    "one forward, one backward": "ff0f1f23",
}
"""For each name the order: `f` for the next forward, a digit for the backward of that call."""


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def step_of(run: Callable[[Tensor], Tensor], order: str) -> Callable[[], None]:
    """A step that reads leaves, as a stage of a pipeline does with what it received."""
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(ROWS, WIDTH, generator=draw).requires_grad_() for _ in range(order.count("f"))]
    gradient = torch.randn(ROWS, WIDTH, generator=draw)

    def step() -> None:
        given, outputs = iter(inputs), []
        for turn in order:
            if turn == "f":
                outputs.append(run(next(given)))
            else:
                torch.autograd.backward(outputs[int(turn)], gradient)
        for x in inputs:
            x.grad = None

    return step


def train(model: nn.Module, step: Callable[[], None]) -> tuple[list[int], list[Tensor | None]]:
    """Measured peaks of four steps without gradients from before, and the last gradients."""
    peaks = []
    for _ in range(4):
        model.zero_grad()
        peaks.append(measure_step(step, warmup=0).peak_bytes)
    return peaks, [one.grad for one in model.parameters()]


def predicted() -> int:
    (report,) = remat_compiler.reports()
    assert report.step is not None
    assert report.step.peak_bytes is not None
    return report.step.peak_bytes


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_micro_batches_that_overlap_share_the_budget(
    order: str, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    _, expected = train(model, step_of(model, order))
    options: dict[str, Any] = {"inner": "eager", "cost_model": "nominal", "max_slowdown": None}
    call = torch.compile(model, backend=remat, dynamic=False, options={**options, "memory_budget": 10**9})
    peaks, _ = train(model, step_of(call, order))
    tangent_bytes = ROWS * WIDTH * 4  # the caller's own; it counts as one that autograd makes
    assert 0 <= predicted() - peaks[-1] <= tangent_bytes
    budget = int(0.8 * peaks[-1])
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    call = torch.compile(model, backend=remat, dynamic=False, options={**options, "memory_budget": budget})
    with caplog.at_level(logging.WARNING):
        peaks, found = train(model, step_of(call, order))
    # Nobody knows of other calls before the first step.
    assert peaks[0] > budget
    assert "this step may take" in caplog.text or "a step may have taken" in caplog.text
    assert max(peaks[1:]) <= predicted() <= budget
    torch.testing.assert_close(found, expected)


def test_a_graph_that_was_alone_at_first_reports_its_later_steps(model: nn.Module) -> None:
    """As a stage whose shapes a pipeline learns by a micro-batch of its own before the first step."""
    options: dict[str, Any] = {"inner": "eager", "cost_model": "nominal", "memory_budget": 10**9}
    call = torch.compile(model, backend=remat, dynamic=False, options=options)
    step_of(call, "f0")()
    (alone,) = remat_compiler.reports()
    assert alone.step is None
    peaks, _ = train(model, step_of(call, "ff01"))
    assert 0 <= predicted() - peaks[-1] <= ROWS * WIDTH * 4
    (report,) = remat_compiler.reports()
    assert (report.graph_name, report.peak_bytes) == (alone.graph_name, alone.peak_bytes)
