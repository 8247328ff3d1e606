"""Hooks of parameters that come, go, or change more than their own parameter while a model is trained, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from end_to_end.parameter_hooks import stepping
from end_to_end.test_gradients_leave import Blocks, Step, assert_same, both, plain_step

Hooks = Callable[[nn.Module], Any]


def thaws(model: Any, call: Callable[..., Tensor], number: int) -> Tensor:
    """The first layer is frozen at first, as in a recipe of fine-tuning, and has its hooks once it is trained."""
    if number == 0:
        model.layers[0].requires_grad_(False)
    if number == 2:
        model.layers[0].requires_grad_(True)
        stepping(model.layers[0])
    return plain_step(model, call, number)


def freezes(model: Any, call: Callable[..., Tensor], number: int) -> Tensor:
    if number == 2:
        model.layers[1].requires_grad_(False)
    return plain_step(model, call, number)


class OneOptimizer:
    """Updates those parameters that its optimizer has, each by itself; further groups come while it is trained."""

    def __init__(self, model: Any) -> None:
        self.optimizer = torch.optim.AdamW(model.layers.parameters(), lr=0.01)
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(self)
        model.one_optimizer = self

    def __call__(self, parameter: Tensor) -> None:
        groups = self.optimizer.param_groups
        for group in groups:
            if any(one is parameter for one in group["params"]):
                self.optimizer.param_groups = [{**group, "params": [parameter]}]
                self.optimizer.step()
                self.optimizer.param_groups = groups
                parameter.grad = None


def adds_group(model: Any, call: Callable[..., Tensor], number: int) -> Tensor:
    if number == 2:
        for one in (*model.table.parameters(), *model.norm.parameters()):
            one.grad = None
        model.one_optimizer.optimizer.add_param_group({"params": [model.table.weight, *model.norm.parameters()]})
    return plain_step(model, call, number)


def changing_others(model: Any) -> None:
    """The update of a layer also moves the first one's bias, which autograd needs for no gradient."""

    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        model.layers[0].bias.sub_(parameter.grad.mean())
        parameter.grad = None

    for layer in model.layers[1:]:
        layer.weight.register_post_accumulate_grad_hook(hook)


def updated_by_compiled_code(model: nn.Module) -> None:
    @torch.compile(backend="aot_eager", dynamic=True)
    def update(parameter: Tensor, gradient: Tensor) -> None:
        parameter.sub_(gradient * 0.1)

    def hook(parameter: Tensor) -> None:
        update(parameter, parameter.grad)
        parameter.grad = None

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def with_state_of_eight_bits(model: nn.Module) -> None:
    momenta = {one: (torch.zeros_like(one, dtype=torch.int8), torch.ones(())) for one in model.parameters()}

    def hook(parameter: Any) -> None:
        kept, scale = momenta[parameter]
        momentum = kept * scale * 0.9 + parameter.grad
        scale = momentum.abs().max() / 127
        momenta[parameter] = ((momentum / scale).round().to(torch.int8), scale)
        parameter.sub_(momentum * 0.05)
        parameter.grad.untyped_storage().resize_(0)
        parameter.grad = None

    for one in momenta:
        one.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


PROGRAMS: dict[str, tuple[Hooks, Step]] = {
    "thaws": (lambda model: stepping(nn.ModuleList([*model.layers[1:], model.norm, model.table])), thaws),  # type: ignore
    "freezes": (stepping, freezes),
    "adds_group": (OneOptimizer, adds_group),
    "changing_others": (changing_others, plain_step),
    "updated_by_compiled_code": (updated_by_compiled_code, plain_step),
    "with_state_of_eight_bits": (with_state_of_eight_bits, plain_step),
}


@pytest.mark.usefixtures("compiles_anew")
@pytest.mark.parametrize("budget", [1.0, "min"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_training_is_that_of_eager(program: str, budget: Any) -> None:
    hooks, step = PROGRAMS[program]
    assert_same(*both(Blocks(), hooks, step, memory_budget=budget))
