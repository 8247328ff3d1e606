"""A checkpointed region is computed again by the code that its forward ran."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from remat_compiler.torch_compat import run_in_region


class Graph:
    """Compiled code that is exchanged; each saves other tensors."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.code: Callable[[Tensor], Tensor] = self.first

    def first(self, x: Tensor) -> Tensor:
        self.ran.append("first")
        return x.sin() * x

    def second(self, x: Tensor) -> Tensor:
        self.ran.append("second")
        return (x.sin() * x).clone().mul(1.0).exp().log()

    def __call__(self, x: Tensor) -> Tensor:
        return run_in_region(self, lambda: self.code(x), lambda: self.code, (x,))


def test_code_that_was_exchanged_in_between_computes_a_region_again() -> None:
    one, other = Graph(), Graph()
    x = torch.randn(8, requires_grad=True)

    def region(x: Tensor) -> Tensor:
        return other(one(one(x)))

    for turn, name in enumerate(("first", "second")):
        y = checkpoint(region, x, use_reentrant=False)
        for graph in (one, other):
            graph.code = graph.second
        y.sum().backward(retain_graph=True)
        # Computed again for each backward.
        y.sum().backward()
        assert one.ran[turn * 6 :] == [name] * 6
        assert other.ran[turn * 3 :] == [name] * 3
    expected = torch.autograd.grad(region(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, 4 * expected)


def test_regions_within_regions_and_calls_outside() -> None:
    graph, x = Graph(), torch.randn(8, requires_grad=True)

    def inner(x: Tensor) -> Tensor:
        return graph(x)

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, graph(x), use_reentrant=False)

    y = checkpoint(outer, x, use_reentrant=False)
    assert graph.ran == ["first"] * 2
    graph.code = graph.second
    y.sum().backward()
    assert x.grad is not None
    graph(x)
    assert graph.ran[-1] == "second"
