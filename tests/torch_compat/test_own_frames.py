"""A compiled function that calls backward: Dynamo, which looks at each frame below, leaves the hooks of remat alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remat_compiler.units import rounded_up

OPTIONS = {"memory_budget": "1GiB", "inner": "eager", "cost_model": "nominal"}


def by_backward(loss: Tensor, model: nn.Module) -> None:
    loss.backward()


def by_two_backwards(loss: Tensor, model: nn.Module) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def by_autograd_grad(loss: Tensor, model: nn.Module) -> None:
    for one, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
        one.grad = grad


def by_backward_of_some(loss: Tensor, model: nn.Module) -> None:
    loss.backward(inputs=list(model.parameters())[:2])


def said(backend: str, differentiate: Callable[[Tensor, nn.Module], None]) -> tuple[list[str], Tensor]:
    """The warnings of three steps in a compiled function, and the last loss."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def train(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        differentiate(loss, model)
        return loss

    compiled = torch.compile(train, backend=backend, options=OPTIONS if backend == "remat" else None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            loss = compiled(torch.ones(4, 8))
    return [str(one.message) for one in seen if issubclass(one.category, UserWarning)], loss.detach()


@pytest.mark.parametrize("differentiate", [by_backward, by_two_backwards, by_autograd_grad, by_backward_of_some])
@pytest.mark.usefixtures("compiles_anew")
def test_a_backward_in_a_compiled_function_warns_as_the_stock_backend_does(
    differentiate: Callable[[Tensor, nn.Module], None],
) -> None:
    stock, expected = said("aot_eager", differentiate)
    ours, found = said("remat", differentiate)
    assert ours == stock
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("compiles_anew")
def test_functions_that_are_called_while_dynamo_traces_are_still_inlined() -> None:
    by_backward_of_one = torch.compile(lambda x: x * rounded_up(5, 4), backend="remat", options=OPTIONS, fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    by_backward_of_one(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0]
