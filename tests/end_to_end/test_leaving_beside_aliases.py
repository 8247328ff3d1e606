"""Parameters with post-accumulate hooks in a graph of which two inputs have the same memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from end_to_end.compiling import compile_with
from end_to_end.parameter_hooks import halve


class ChangesOneOfTwo(nn.Module):
    """A graph that changes one of its inputs, and reads another that has the same memory."""

    def __init__(self, view: Callable[[Tensor], Tensor], *, inputs_first: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.view, self.inputs_first = view, inputs_first

    def forward(self, x: Tensor) -> Tensor:
        whole = self.first(x)
        part = self.view(whole)
        torch._dynamo.graph_break()
        if self.inputs_first:
            total = (part * 2).sum()
            whole.mul_(2)
            return self.second(whole).sin().sum() + total
        weight = self.second.weight * 2
        whole.mul_(2)
        return nn.functional.linear(whole, weight, self.second.bias).sin().sum() + part.sum()


@pytest.mark.parametrize("inputs_first", [False, True])
@pytest.mark.parametrize("view", [lambda x: x[0], lambda x: x.diagonal(), lambda x: x.t()[2:4]])
def test_inputs_of_one_memory_beside_parameters_with_hooks(
    view: Callable[[Tensor], Tensor], inputs_first: bool
) -> None:
    """AOTAutograd takes such inputs for one, so that a graph has more arguments than gradients."""
    model = ChangesOneOfTwo(view, inputs_first=inputs_first).double()
    other = copy.deepcopy(model)
    for one in (model, other):
        for parameter in one.second.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
    compiled = compile_with(other, memory_budget=0.9, on_infeasible="min")
    for number in range(3):
        x = torch.full((8, 8), 0.1 + number, dtype=torch.float64)
        losses = [call(x) for call in (model, compiled)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
    for expected, found in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(found.grad, expected.grad)
