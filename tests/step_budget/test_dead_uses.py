"""A gradient that a graph does not make for a value that it reads is not counted among those that it hands on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import remat_compiler.backend  # noqa: F401 - registers the backend
from remat_compiler.observer import Observer, observed_by
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_model.step import Step


class ReadBehindABreak(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.second = how, nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        read = {"compared": h > 0, "detached": h.detach(), "used": h}[self.how]
        return h, torch.tanh(self.second(x)) * read


class Steps(Observer):
    def __init__(self) -> None:
        self.passed: list[list[int]] = []

    def step_completes(self, step: Step[CompiledGraph]) -> None:
        self.passed.append([len(call.passed) for call in step.calls])


@pytest.mark.parametrize(("how", "passed"), [("compared", 0), ("detached", 0), ("used", 1)])
def test_only_gradients_that_are_made_are_passed_on(how: str, passed: int) -> None:
    torch._dynamo.reset()
    steps, options = Steps(), {"memory_budget": "1MiB", "inner": "eager", "cost_model": "nominal"}
    compiled = torch.compile(ReadBehindABreak(how), backend="remat", options=options)
    with observed_by(steps):
        for _ in range(3):
            h, y = compiled(torch.randn(128, 64))
            (h.sum() + y.sum()).backward()
    assert steps.passed
    assert steps.passed[0] == [0, passed]
