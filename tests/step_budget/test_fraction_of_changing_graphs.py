"""A fraction of the peak of a step that runs small graphs of changing sizes, beside others that recompute."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget

pytestmark = pytest.mark.usefixtures("compiles_anew")


def compiled(model: Any, budget: float, **how: Any) -> Any:
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal"}
    return torch.compile(model, backend=partial(remat, options=options), **how)


class Experts(nn.Module):
    """Small experts that read any number of rows.  Dynamo leaves the loop to eager, and compiles each by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        choice = (torch.arange(len(x)) * 7 % 23 // 6).clamp(max=3)
        out = torch.zeros_like(x)
        for i in choice.unique():
            rows = torch.where(choice == i)[0]
            out = out.index_add(0, rows, self.experts[i](x[rows]))
        return out


class Learned(Experts):
    """Experts whose rows a gate chooses, so that each step has others."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        choice, out = weights.argmax(1), torch.zeros_like(x)
        for i in choice.unique():
            rows = torch.where(choice == i)[0]
            out = out.index_add(0, rows, self.experts[i](x[rows]) * weights[rows, i, None])
        return out


class Segments(Experts):
    """One small layer over parts of several lengths."""

    def forward(self, x: Tensor) -> Tensor:
        parts = list(x.split([5, 19, 11, 29]))
        for i in range(4):
            torch._dynamo.graph_break()
            parts[i] = self.experts[0](parts[i])
        return torch.cat(parts)


class Frames(Experts):
    """Each expert reads a prefix that grows from step to step."""

    def forward(self, x: Tensor) -> Tensor:
        end = int(x[0, 0].abs() * 8) % 32 + 8
        for i in range(2):
            torch._dynamo.graph_break()
            x = torch.cat((self.experts[i](x[: end + 4 * i]), x[end + 4 * i :]))
        return x


class Net(nn.Module):
    """Experts between large layers of fixed sizes; with a loss at its end or not."""

    def __init__(self, *, ends: bool, middle: type[Experts] = Experts) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(16, 16), nn.GELU())]) for _ in range(2)]
        self.first, self.last = layers
        self.middle = middle()
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.middle(self.first(x)))
        return x.square().mean() if self.ends else x


@pytest.mark.parametrize(
    ("middle", "ends"), [(Experts, True), (Experts, False), (Learned, True), (Segments, False), (Frames, True)]
)
def test_a_small_graph_of_changing_sizes_does_not_refuse_the_fraction_of_its_step(
    middle: type[Experts], ends: bool
) -> None:
    model = Net(ends=ends, middle=middle)
    run, eager = compiled(model, 0.7), Net(ends=ends, middle=middle)
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(64, 16)
        for one, call in ((model, run), (eager, eager)):
            one.zero_grad()
            call(x).square().mean().backward()
        for got, want in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(got.grad, want.grad)
    figures = [report.step for report in remat_compiler.reports() if report.step is not None]
    assert figures
    for one in figures:
        assert one.peak_bytes is not None
        assert one.limit_bytes is not None
        assert one.peak_bytes <= one.limit_bytes


def test_alone_it_is_refused_once_its_step_is_known() -> None:
    """As a graph of fixed sizes is: which graphs make up the step is known only when it is complete."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    run = compiled(model, 0.7, dynamic=True)
    run(torch.randn(32, 16)).sum().backward()
    for rows in (32, 40):
        with pytest.raises(InfeasibleBudget, match=r"0\.7 of the peak without a budget"):
            run(torch.randn(rows, 16)).sum().backward()


def test_one_that_returns_a_loss_is_refused_when_it_is_compiled() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    run = compiled(lambda x: model(x).sum(), 0.7, dynamic=True)
    with pytest.raises(InfeasibleBudget):
        run(torch.randn(32, 16)).backward()
