"""Interpreted operators that overwrite arguments, through ``torch.compile``: the same bits, at foretold lower peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from instruments.measure import measure_step, train_step
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text

pytestmark = pytest.mark.usefixtures("compiles_anew")


class Dense(nn.Module):
    """Products of three dimensions, whose results are views, with pointwise operators behind them."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x)) * 1.5 + torch.tanh(layer(x)).exp()
        return F.relu(self.norm(x)).square().mean()


class Convolved(nn.Module):
    """Batch normalisation, whose statistics the step changes, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return F.dropout(F.silu(self.second(x)) + x, 0.2).square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (Dense, (4, 16, 32)),
    "convolved": (Convolved, (2, 3, 16, 16)),
}


def measured(name: str, budget: float | str, overwrites: bool) -> tuple[list[Tensor], int, PlanReport]:
    """Gradients and peak of a step, and the report."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    remat_compiler.clear_reports()
    step = train_step(compile_with(model, memory_budget=budget, inplace_buffers=overwrites), {"x": x})
    torch.manual_seed(1)
    step()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    peak_bytes = measure_step(step).peak_bytes
    return gradients, peak_bytes, remat_compiler.reports()[-1]


@pytest.mark.parametrize("budget", [1.0, "min"])
@pytest.mark.parametrize("name", MODELS)
def test_peaks_are_lower_and_as_foretold(name: str, budget: float | str) -> None:
    expected, before, plain = measured(name, budget, False)
    gradients, after, report = measured(name, budget, True)
    assert len(gradients) > 3
    assert all(map(torch.equal, gradients, expected))
    assert (plain.peak_bytes, report.peak_bytes) == (before, after)
    assert after <= before
    assert (plain.overwriting_ops, plain.overwritten_bytes) == (0, 0)
    assert report.overwriting_ops > 3
    assert f"by {report.overwriting_ops} operators" in summary_text(report)
    assert "never allocated" not in summary_text(plain)
    if budget == 1.0:
        # Of torch's own partition all is known, before it is emitted.
        assert report.estimated_peak_bytes == after
    if (name, budget) == ("dense", 1.0):
        assert after < before


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_eager_in_either_precision(name: str, precision: torch.dtype | None) -> None:
    make, shape = MODELS[name]
    tolerance = 0.0 if precision is None else 2e-2
    model, x = make(), torch.randn(shape)
    assert differences_from_eager(model, (x,), memory_budget=0.6, precision=precision, tolerance=tolerance) == []
    assert remat_compiler.reports()[-1].overwriting_ops > 0


def test_a_retained_graph_reads_its_saved_values_again() -> None:
    torch.manual_seed(0)
    model, x = Dense(), torch.randn(4, 16, 32)
    loss = model(x)
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for budget in (1.0, 0.6, "min"):
        model.zero_grad()
        loss = compile_with(model, memory_budget=budget)(x)
        for last in (False, False, True):
            model.zero_grad()
            loss.backward(retain_graph=not last)
            found = [p.grad for p in model.parameters() if p.grad is not None]
            assert all(map(torch.equal, found, expected))


class Returning(nn.Module):
    """Returns what `run` makes of a product, which is a view of a smaller one."""

    def __init__(self, run: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.weight, self.run = nn.Linear(8, 8), run

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.run(self.weight(x)))


RETURNS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "overwriting": lambda y: [y * 2],
    "overwriting twice": lambda y: [-(y * 2)],
    "both": lambda y: [y, y.relu()],
    "a view, and what overwrites its base": lambda y: [y.view(-1), y.relu()],
    "a view of the result": lambda y: [(y * 2).view(-1)],
    "the result, and a view of it": lambda y: [z := y * 2, z.view(-1)],
    "used twice through views": lambda y: [y.relu() + y.view(-1).sin().view_as(y) + y.mT.contiguous().mT.cos()],
    "of a number": lambda y: [y.sum() * 2],
}


@pytest.mark.parametrize("name", RETURNS)
def test_results_may_be_changed_in_place(name: str) -> None:
    """As after eager: autograd would refuse to change a view that a differentiable function returned."""
    torch.manual_seed(0)
    model, x = Returning(RETURNS[name]), torch.randn(2, 4, 8, requires_grad=True)

    def step(call: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Tensor]:
        model.zero_grad()
        results = call(x)
        for result in results:
            # One that has been returned with a view of it, autograd refuses in eager, too.
            if len(results) == 1:
                result.mul_(3)
        total = torch.stack([result.sum() for result in results]).sum()
        return [total.detach(), *torch.autograd.grad(total, [x, *model.parameters()])]

    assert all(map(torch.equal, step(compile_with(model, memory_budget=1.0)), step(model)))
    assert all(map(torch.equal, step(compile_with(model, memory_budget="min")), step(model)))


def test_sizes_that_change() -> None:
    model = Dense()
    compiled = compile_with(model, dynamic=True, memory_budget="1MiB")
    for length in (16, 9, 21):
        x = torch.randn(4, length, 32)
        found = []
        for call in (model, compiled):
            model.zero_grad()
            call(x).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert all(map(torch.equal, *found))
    assert remat_compiler.reports()[-1].overwriting_ops > 0
