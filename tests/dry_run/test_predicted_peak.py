"""What is predicted before the first step is what the allocator counts in a step, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from instruments.measure import measure_step, train_step
from remat_compiler.backend import remat
from remat_compiler.report.plan_report import PlanReport

RANDOM_STATE_BYTES = 5056
"""State of a CPU generator: of the size of what these models save, so that one too few would show."""


pytestmark = pytest.mark.usefixtures("compiles_anew")


class Dropped(nn.Module):
    """Dropout behind every product."""

    def __init__(self, width: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), 0.3)
        return x.square().mean()


class Normalised(nn.Module):
    """Running statistics larger than the values: two rows of each, and few rows in a batch."""

    def __init__(self, width: int = 4096, layers: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.norms, self.dropout = nn.ModuleList([nn.BatchNorm1d(width) for _ in range(layers)]), dropout

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = F.dropout(torch.sin(norm(x)), self.dropout)
        return x.square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "dropout, small": (Dropped, (64, 16)),
    "dropout, larger": (Dropped, (512, 16)),
    "batch norm, large buffers": (Normalised, (2, 4096)),
    "batch norm and dropout": (lambda: Normalised(1024, 4, 0.3), (16, 1024)),
}


def predicted_and_measured(name: str, **options: object) -> tuple[PlanReport, int]:
    """The report made while compiling, and the peak of later steps."""
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    chosen: dict[str, Any] = {"max_slowdown": None, **options}
    model.compile(backend=remat, options=chosen, dynamic=False)
    measured = measure_step(train_step(model, {"x": x}), steps=2)
    assert measured.repeatable
    (report,) = remat_compiler.reports()
    return report, measured.peak_bytes


@pytest.mark.parametrize("budget", [1.0, 0.7, "min"])
@pytest.mark.parametrize("name", MODELS)
def test_simulated_checked_and_measured_agree(name: str, budget: float | str) -> None:
    report, measured = predicted_and_measured(name, memory_budget=budget, inner="eager", on_infeasible="min")
    assert (report.estimated_peak_bytes, report.checked_peak_bytes) == (measured, measured)
    assert sum(storage.size_bytes for storage in report.live_at_peak) == measured


@pytest.mark.parametrize("name", ["dropout, larger", "batch norm and dropout"])
def test_the_smallest_peak_of_dropout_models_replays(name: str) -> None:
    """So the cases above hold the generator's second state."""
    report, _ = predicted_and_measured(name, memory_budget="min", inner="eager")
    assert any("replays the same random values" in decision.reason for decision in report.decisions)
    assert any(size == RANDOM_STATE_BYTES for size in (d.size_bytes for d in report.decisions))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout, larger", "batch norm, large buffers"])
def test_inductor_is_checked_to_the_byte(name: str) -> None:
    report, measured = predicted_and_measured(name, memory_budget="min", inner="inductor")
    assert report.checked_peak_bytes == measured
