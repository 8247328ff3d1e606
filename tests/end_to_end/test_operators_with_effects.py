"""Operators with an effect run as often, and in the order, in which the program runs them: never to look, nor again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

pytestmark = pytest.mark.usefixtures("compiles_anew")
SEEN: list[str] = []
"""What the operators left behind, in order."""


def _telling(name: str) -> Any:
    """An operator that notes each run on real tensors, and returns a copy of its argument."""

    @torch.library.custom_op(f"with_effects::{name}", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        SEEN.append(f"{name} {tuple(x.shape)}")
        return x.clone()

    operator.register_fake(torch.empty_like)
    _register_effectful_op(getattr(torch.ops.with_effects, name).default, _EffectType.ORDERED)
    return operator


back, there, plain = _telling("back"), _telling("there"), _telling("plain")
there.register_autograd(lambda ctx, gradient: back(gradient))
plain.register_autograd(lambda ctx, gradient: gradient.clone())


class Net(nn.Module):
    def __init__(self, how: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution, self.linear, self.how = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(8, 8), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x).square().mean()


def forward_only(net: Net, x: Tensor) -> Tensor:
    return torch.tanh(plain(torch.tanh(net.convolution(x))).exp()).sin()


def both_ways(net: Net, x: Tensor) -> Tensor:
    return there(net.convolution(x))


def in_order(net: Net, x: Tensor) -> Tensor:
    y = there(torch.tanh(net.linear(x)))
    return there(plain(y.sin())[:, :2].exp())


def unread(net: Net, x: Tensor) -> Tensor:
    """A result that nothing reads."""
    y = torch.tanh(net.linear(x)).sin().exp()
    plain(y.detach())
    return torch.tanh(net.linear(y))


PROGRAMS = (forward_only, both_ways, in_order, unread)


def trained(how: Callable[..., Tensor], backend: str, **options: Any) -> tuple[list[str], list[Tensor]]:
    """What was told in each of three steps, and all gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, x, told, found = Net(how), torch.randn(2, 3, 8, 8), list[str](), list[Tensor]()
    compiled = torch.compile(net, backend=backend, options=options or None, fullgraph=True)
    SEEN.clear()
    for _ in range(3):
        net.zero_grad()
        told.append("forward")
        loss = compiled(x)
        told += [*SEEN, "backward"]
        SEEN.clear()
        loss.backward()
        told += SEEN
        SEEN.clear()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return told, found


@pytest.mark.parametrize(("budget", "inner"), [(1.0, "eager"), ("min", "eager"), ("min", "inductor")])
@pytest.mark.parametrize("how", PROGRAMS)
def test_effects_are_those_of_the_stock_backend(how: Callable[..., Tensor], budget: object, inner: str) -> None:
    expected, gradients = trained(how, "aot_eager")
    found, ours = trained(how, "remat", memory_budget=budget, inner=inner, cost_model="nominal")
    assert found == expected
    torch.testing.assert_close(ours, gradients, rtol=1e-4, atol=1e-6)
