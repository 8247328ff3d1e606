"""Models whose sizes depend on the data, in one graph: trained as in eager, planned, and told of if over the budget."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from instruments.measure import allocator_events, gradients, live_bytes
from remat_passes.bounds import solved

pytestmark = pytest.mark.usefixtures("compiles_anew")
ROWS, WIDTH = 256, 32


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))


class Routed(nn.Module):
    """Experts, each for the rows that a gate sends it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(expert() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out, chosen = torch.zeros_like(x), self.gate(x).argmax(1)
        for number, one in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, one(x[rows]))
        return (x + out).square().mean()


class Weighted(Routed):
    """As mixtures of experts of language models: each row goes to two of them, with weights, added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts.append(expert())

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(F.softmax(self.gate(x), 1), 2)
        out, mask = torch.zeros_like(x), F.one_hot(chosen, 3).permute(2, 1, 0)
        for number, one in enumerate(self.experts):
            slot, row = torch.where(mask[number])
            out.index_add_(0, row, one(x[row]) * weights[row, slot, None])
        return (x + out).square().mean()


class Masked(Routed):
    """A loss over the rows that a mask leaves."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.experts[0](x))
        kept = y[x[:, 0] > 0]
        return torch.tanh(self.experts[1](kept)).square().sum() / ROWS + self.gate(y).mean()


class Repeated(Routed):
    """Rows as often as the data say, as durations of phonemes do."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.experts[0](x))
        times = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        return self.experts[1](torch.repeat_interleave(y, times, dim=0)).square().sum() / ROWS + self.gate(y).mean()


KINDS: tuple[type[Routed], ...] = (Routed, Weighted, Masked, Repeated)
CAPTURED = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def trained(model: nn.Module, budget: object, inner: str = "eager", **options: Any) -> Callable[[], object]:
    """A step, of which three are compared with eager's."""
    x = torch.randn(ROWS, WIDTH)
    given = {"memory_budget": budget, "inner": inner, "cost_model": "nominal", **options}
    compiled = torch.compile(model, backend="remat", options=given, fullgraph=True)

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss: Tensor = compiled(x)
        loss.backward()
        return loss

    with CAPTURED:
        model(x).backward()
        expected = gradients(model)
        for _ in range(3):
            step()
            torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-6)
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_over_its_budget_is_told_of(kind: type[Routed], caplog: pytest.LogCaptureFixture) -> None:
    budget = 200 * 1024
    step = trained(kind(), budget, on_infeasible="min")
    assert max(live_bytes(allocator_events(step))) > budget, "the budget is no test of it"
    assert any("depends on data" in text or "no plan fits" in text for text in caplog.messages)


@pytest.mark.parametrize("highs", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_peak_is_found_with_either_solver(
    kind: type[Routed], highs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators that only check sizes have no arguments or readers that a bound would count."""
    if not highs:
        # As where the extra `highs` is not installed.
        monkeypatch.setitem(sys.modules, "highspy", None)
        assert not solved.has_highs()
    trained(kind(), "min")
    assert remat_compiler.reports()
    assert "planning failed" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_inductor_plans_such_graphs(kind: type[Routed], caplog: pytest.LogCaptureFixture) -> None:
    trained(kind(), "min", "inductor")
    assert remat_compiler.reports()
    assert "planning failed" not in caplog.text
