"""A small model that returns its loss, and data for it, under the options that compile fastest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

BATCH = 32
BUDGET = "40000"
"""Bytes that a step of `BATCH` rows keeps to by recomputation only."""
NAMES = {
    *("remat/budget_bytes", "remat/predicted_peak_bytes", "remat/added_time_percent"),
    *("remat/recomputed_values", "remat/offloaded_bytes", "remat/planned_graphs"),
}


class SmallNet(nn.Module):
    """Layers whose activations are larger than their parameters from a batch of some ten rows on."""

    def __init__(self) -> None:
        super().__init__()
        # Of its own, so that a model trained afterwards draws the same.
        torch.manual_seed(0)
        pairs = ((nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(4))
        self.layers = nn.Sequential(*(part for pair in pairs for part in pair))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(inputs) - labels).square().mean()}


def rows(count: int = 96) -> list[dict[str, Tensor]]:
    """A data set."""
    random = torch.Generator().manual_seed(1)
    return [{name: torch.randn(8, generator=random) for name in ("inputs", "labels")} for _ in range(count)]


def check_plan(logged: Mapping[str, float]) -> None:
    """What was logged is a plan that keeps `BUDGET` by recomputation."""
    assert set(logged) >= NAMES, logged
    assert logged["remat/budget_bytes"] == int(BUDGET)
    assert 0.9 * int(BUDGET) < logged["remat/predicted_peak_bytes"] <= int(BUDGET)
    assert logged["remat/added_time_percent"] > 0
    assert logged["remat/recomputed_values"] > 0
    assert (logged["remat/offloaded_bytes"], logged["remat/planned_graphs"]) == (0, 1)
