"""A profiler beside the first steps, so that workspaces cannot be measured: nothing of it reaches later processes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import remat_compiler
from end_to_end.compiling import compile_with

pytestmark = pytest.mark.usefixtures("compiles_anew")


class Sorting(nn.Module):
    """Two graphs of sorts, which take memory inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.one(x)).t().sort(0).values.t()
        torch._dynamo.graph_break()
        return torch.tanh(self.two(x)).t().sort(0).values.square().mean()


def process(budget: object, *, profiled: bool) -> int:
    """Train as a process of its own would; the largest checked peak of its graphs."""
    remat_compiler.clear_reports()
    step: Any = compile_with(
        Sorting(), memory_budget=budget, inner="eager", cost_model="nominal", on_infeasible="error"
    )
    for _ in range(3):
        recorded = profile(activities=[ProfilerActivity.CPU], profile_memory=True) if profiled else nullcontext()
        with recorded:
            step(torch.randn(128, 64)).backward()
    return max(report.checked_peak_bytes or 0 for report in remat_compiler.reports())


def test_figures_that_a_profiler_kept_from_being_measured_are_not_left_behind() -> None:
    foreseen = process("min", profiled=True)
    exact = process("min", profiled=False)
    assert exact > foreseen, "what operators take inside was not known"
    assert process("min", profiled=False) == exact
