"""A profiler beside the first steps, so that workspaces cannot be measured: nothing of it reaches later processes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
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


class Critic(nn.Module):
    """Layers with normalised spectra, as the critic of a generative adversarial network, called twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.1), weight_norm(nn.Linear(64, 1)))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real: torch.Tensor = self.layers(x)
        torch._dynamo.graph_break()
        return torch.relu(1 - real).mean() + torch.relu(1 + self.layers(x * 2)).mean()


class Ranking(nn.Module):
    """One graph of operators that take memory inside: a median, the largest rows, a cumulative product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.one(x))
        rows = (x - x.median(0).values).topk(8, 0).values
        return torch.tanh(self.two(rows)).cumprod(1).square().mean() + x.logsumexp(0).mean()


class Images(nn.Module):
    """Convolutions of two graphs, with a normalisation that reads whole groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.silu(self.norm(self.one(x.view(32, 1, 16, 16))))
        torch._dynamo.graph_break()
        return torch.tanh(self.two(y)).square().mean()


def process(budget: object, *, profiled: bool, kind: type[nn.Module] = Sorting) -> int:
    """Train as a process of its own would; the largest checked peak of its graphs."""
    remat_compiler.clear_reports()
    step: Any = compile_with(kind(), memory_budget=budget, inner="eager", cost_model="nominal", on_infeasible="error")
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


@pytest.mark.parametrize("budget", ["min", 1.0])
@pytest.mark.parametrize("kind", [Sorting, Critic, Ranking, Images])
def test_later_processes_train_as_if_there_had_been_no_profiler(
    kind: type[nn.Module], budget: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(budget, profiled=True, kind=kind)
    after = process(budget, profiled=False, kind=kind)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "empty"))
    assert after == process(budget, profiled=False, kind=kind)
