"""Autograd's nodes of compiled graphs, found from what a call returns."""

from __future__ import annotations

from typing import Any

import torch

from remat_compiler.torch_compat.backward_nodes import compiled_backward
from step_budget.test_coordinator import Twice


def test_an_argument_that_is_returned_has_the_node_of_the_graph_that_made_it() -> None:
    given: Any = Twice.apply(torch.ones(2, 3, requires_grad=True))
    made: Any = Twice.apply(given)
    assert compiled_backward([given, made], [given]) is made.grad_fn
    assert compiled_backward([given, made.view(-1)[1:]], [given]) is made.grad_fn
    assert compiled_backward([given, torch.ones(2)], [given]) is None
