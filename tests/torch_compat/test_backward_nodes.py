"""Autograd's nodes of compiled graphs, found from what a call returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remat_compiler.torch_compat.backward_nodes import compiled_backward


class Doubled(torch.autograd.Function):
    """Stands for a compiled graph, whose node is one of a custom function, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def test_an_argument_that_is_returned_has_the_node_of_the_graph_that_made_it() -> None:
    given: Any = Doubled.apply(torch.ones(2, 3, requires_grad=True))
    made: Any = Doubled.apply(given)
    assert compiled_backward([given, made], [given]) is made.grad_fn
    assert compiled_backward([given, made.view(-1)[1:]], [given]) is made.grad_fn
    assert compiled_backward([given, torch.ones(2)], [given]) is None
