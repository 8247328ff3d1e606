"""A buffer that a step changes and stores anew, beside an input of the step that changes, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from end_to_end.compiling import compile_with


class Counting(nn.Module):
    """Counts its calls; torch splits the step there, so that the count is a result of its first graph."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.tensor(0))
        self.scale = nn.Buffer(torch.ones(8))

    def forward(self, x: Tensor, into: Tensor) -> Tensor:
        into.copy_(x)
        self.calls += 1
        self.scale.mul_(0.5)
        return torch.sin(into * self.scale.clone()).sum()


def trained(budget: float | str | None, inner: str) -> list[Tensor]:
    """Everything that two steps leave behind."""
    torch._dynamo.reset()
    module, left = Counting(), []
    call = module if budget is None else compile_with(module, memory_budget=budget, inner=inner)
    for seed in range(2):
        torch.manual_seed(seed)
        x, into = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
        changed = into.clone()
        loss = call(x, changed)
        loss.backward()
        assert x.grad is not None
        assert into.grad is not None
        left += [loss.detach(), x.grad, into.grad, changed.detach(), *(one.clone() for one in module.buffers())]
    return left


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("budget", [1.0, "min"])
def test_an_input_that_changes_gets_its_own_values(budget: float | str, inner: str) -> None:
    torch.testing.assert_close(trained(budget, inner), trained(None, inner))
