"""A gradient that is handed to its leaf leaves what autograd's own accumulation leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compiler.gradients.accumulate import accumulate


class Given(torch.autograd.Function):
    """Hands on a gradient that is given."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return leaf.detach().sum()

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        return ctx.gradient, None


LEAVES = {
    "contiguous": torch.arange(24.0).reshape(4, 6),
    "transposed": torch.arange(24.0).reshape(6, 4).t(),
    "channels last": torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
    "with gaps": torch.arange(48.0).reshape(4, 12)[:, ::2],
    "expanded": torch.arange(4.0).reshape(4, 1).expand(4, 6),
    "one row": torch.arange(6.0).reshape(1, 6),
}
GRADIENTS = {
    "contiguous": lambda leaf: torch.ones(leaf.shape) * 2,
    "as the leaf": lambda leaf: torch.ones_like(leaf) * 2,
    "transposed": lambda leaf: (torch.ones(leaf.shape[::-1]) * 2).permute(*reversed(range(leaf.ndim))),
    "part of a larger one": lambda leaf: (torch.ones(3, *leaf.shape) * 2)[1],
}


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("leaf", LEAVES)
def test_values_and_layout_are_those_of_autograd(leaf: str, gradient: str, there: bool) -> None:
    found = []
    for ours in (False, True):
        one = LEAVES[leaf].detach().requires_grad_()
        before = torch.ones_like(one, memory_format=torch.contiguous_format) if there else None
        one.grad = before
        if ours:
            accumulate(one, GRADIENTS[gradient](one))
        else:
            Given.apply(one, GRADIENTS[gradient](one)).backward()
        assert one.grad is not None
        assert not there or one.grad is before
        found.append(one.grad)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, check_stride=True)
    assert found[1].untyped_storage().nbytes() == found[1].numel() * 4


def test_hooks_run_in_order_and_may_remove_themselves() -> None:
    parameter, heard = nn.Parameter(torch.zeros(3)), []

    def once(p: Tensor) -> None:
        heard.append("once")
        handle.remove()

    handle = parameter.register_post_accumulate_grad_hook(once)
    parameter.register_post_accumulate_grad_hook(lambda p: heard.append("each time"))
    for _ in range(2):
        accumulate(parameter, torch.ones(3))
    assert heard == ["once", "each time", "each time"]


def test_hooks_record_no_gradients() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    seen: list[bool] = []
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append(torch.is_grad_enabled()))
    with torch.enable_grad():
        accumulate(parameter, torch.ones(3))
    assert seen == [False]
