"""Steps with branches and loops that stay in the graph: gradients as in eager, and peaks with what is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.while_loop import while_loop

import remat_compiler
from instruments.measure import allocator_events, gradients, live_bytes

ROWS, WIDTH = 128, 32


def branch(x: Tensor, weight: Tensor) -> Tensor:
    """The branch that does not run takes more inside than the other."""
    return torch.cond(
        x.sum() > 1e9,
        lambda x, weight: torch.tanh(torch.tanh(torch.tanh(x @ weight) @ weight) @ weight),
        lambda x, weight: torch.tanh(torch.tanh(x @ weight) @ weight),
        (x, weight),
    )


def each_row(x: Tensor, weight: Tensor) -> Tensor:
    return mapped(lambda rows, weight: torch.tanh(rows @ weight).sin(), x.reshape(8, -1, WIDTH), weight).reshape(
        x.shape
    )


def loop(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        start = (torch.zeros((), dtype=torch.int64), x.detach())
        _, scale = while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, torch.tanh(h) * 1.1), start)
    return x * scale @ weight


class Model(nn.Module):
    def __init__(self, inside: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inside = inside
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)).sin()
            x = x + self.inside(x, self.weight)
        return x.square().mean()


def compared(inside: Callable[[Tensor, Tensor], Tensor], **options: Any) -> int:
    """Peak of a step whose gradients are those of eager."""
    module, x = Model(inside), torch.randn(ROWS, WIDTH)
    module(x).backward()
    expected = gradients(module)
    compiled = torch.compile(module, backend="remat", options={"cost_model": "nominal", **options}, dynamic=False)

    def step() -> None:
        compiled(x).backward()

    for _ in range(2):
        module.zero_grad(set_to_none=True)
        step()
    torch.testing.assert_close(gradients(module), expected)
    module.zero_grad(set_to_none=True)
    return max(live_bytes(allocator_events(step)))


@pytest.mark.parametrize("budget", [1.0, "min"])
@pytest.mark.parametrize("inside", [branch, each_row, loop])
@pytest.mark.usefixtures("compiles_anew")
def test_what_branches_and_loops_hold_inside_is_counted(
    inside: Callable[[Tensor, Tensor], Tensor], budget: float | str, caplog: pytest.LogCaptureFixture
) -> None:
    measured = compared(inside, inner="eager", memory_budget=budget)
    (report,) = remat_compiler.reports()
    # The longer branch is counted, though the other one runs.
    assert measured <= report.peak_bytes if inside is branch else measured == report.peak_bytes
    assert "is not known" not in caplog.text


@pytest.mark.parametrize("budget", [1.0, "min"])
@pytest.mark.usefixtures("compiles_anew")
def test_the_body_of_a_branch_does_not_write_over_what_is_read_after_it(budget: float | str) -> None:
    measured = compared(branch, inner="inductor", memory_budget=budget)
    (report,) = remat_compiler.reports()
    assert measured <= report.peak_bytes
