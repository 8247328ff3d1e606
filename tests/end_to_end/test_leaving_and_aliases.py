"""Gradients that leave in graphs whose memory is shared: by inputs, by gradients, by what is computed from them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from end_to_end.compiling import compile_with
from end_to_end.parameter_hooks import halve, stepping
from end_to_end.test_gradients_leave import STEPS, assert_same, both, keeping


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


class Scaled(nn.Module):
    """Gated layers behind norms whose scales pointwise operators read, which are inlined into later ones."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.full((width,), 0.5 + i) for i in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for scale, gate, layer in zip(self.scales, self.gates, self.layers):
            h = scale * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
            x = x + layer(nn.functional.silu(gate(h)) * gate(h).tanh())
        return x.square().mean()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_parameters_that_are_read_by_inlined_operators(served: list[Tensor], inner: str) -> None:
    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(torch.linspace(-1, 1, 128, dtype=torch.float64).reshape(8, 16) + number)
        loss.backward()
        return loss

    assert_same(*both(Scaled(), stepping, step, memory_budget="min", inner=inner))
    assert len(served) == 9 * STEPS


class Alike(nn.Module):
    """Parameters that are added up: the gradient of one is that of the other, or what that is computed from."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.full(shape, 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.first + self.second) * x).sin().sum()


@pytest.mark.parametrize("shape", [(4, 8), (8,), (1,)])
def test_gradients_alike_are_no_memory_of_each_other(served: list[Tensor], shape: tuple[int, ...]) -> None:
    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(4, 8) + number)
        loss.backward()
        return loss

    assert_same(*both(Alike(shape), keeping, step, memory_budget=1.0))
