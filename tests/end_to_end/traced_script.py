"""Run as a script: a step of two graphs that share a budget, then one graph at growing sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OPTIONS = {"inner": "eager", "cost_model": "nominal", "max_slowdown": None}


class Layer(nn.Linear):
    """Values that are cheap to compute again."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sin().exp().cos()


class Halves(nn.Module):
    """Two halves, between which Dynamo may be made to break the graph."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(*(Layer(16, 16) for _ in range(3))) for _ in range(2))
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.second(x).sum()


def main() -> None:
    """Train each for a few steps."""
    halves = torch.compile(Halves(True), backend="remat", options={**OPTIONS, "memory_budget": 0.7})
    for _ in range(2):
        halves(torch.randn(256, 16)).backward()
    options = {**OPTIONS, "memory_budget": "300KB"}
    whole = torch.compile(Halves(False), backend="remat", options=options, dynamic=True)
    for length in (128, 300):
        whole(torch.randn(length, 16)).backward()


if __name__ == "__main__":
    main()
