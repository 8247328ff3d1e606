"""Hooks of parameters that run once their gradients are there, for random programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Hooks:
    """Hooks of one kind.

    Attributes:
        make: Makes the hook of one parameter.
        every: One parameter in so many has it.
        exact: Whether it takes no memory, and keeps none.
    """

    make: Callable[[], Callable[[Tensor], None]]
    every: int = 1
    exact: bool = False


def _with_gradient(change: Callable[[Tensor, Tensor], Any], drops: bool) -> Callable[[], Callable[[Tensor], None]]:
    """What makes hooks that `change` the parameter or its gradient, and drop the gradient then."""

    def hook(parameter: Tensor) -> None:
        # Autograd calls the hooks of parameters without a gradient, too.
        if parameter.grad is None:
            return
        with torch.no_grad():
            change(parameter, parameter.grad)
        if drops:
            parameter.grad = None

    return lambda: hook


def _momentum() -> Callable[[Tensor], None]:
    """Updates with a state that is made in the first step, and temporaries."""
    state: list[Tensor] = []

    def hook(parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        with torch.no_grad():
            if not state:
                state.append(torch.zeros_like(parameter))
            state[0].mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.01 * state[0] / (1 + state[0].abs().mean()))
        parameter.grad = None

    return hook


def _every_second_step() -> Callable[[Tensor], None]:
    """Adds two gradients up before it updates the parameter."""
    seen: list[int] = [0]

    def hook(parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        seen[0] += 1
        if seen[0] % 2 == 0:
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None

    return hook


_step = _with_gradient(lambda parameter, gradient: parameter.sub_(gradient, alpha=0.01), drops=True)
HOOKS: dict[str, Hooks] = {
    "step": Hooks(_step, exact=True),
    "step of some": Hooks(_step, every=2, exact=True),
    "drop": Hooks(_with_gradient(lambda parameter, gradient: None, drops=True), exact=True),
    "halve": Hooks(_with_gradient(lambda parameter, gradient: gradient.mul_(0.5), drops=False)),
    "momentum": Hooks(_momentum),
    "every second step": Hooks(_every_second_step),
}


EACH = 4
"""One of so many programs has hooks."""


def are_drawn(seed: int) -> bool:
    """Whether the program of this seed has hooks of this table."""
    return seed % EACH == 2


def draw(random: Random) -> str:
    """A key of `HOOKS`."""
    return random.choice(list(HOOKS))


def add(module: nn.Module, kind: str) -> None:
    """Give parameters of the module hooks of a kind of `HOOKS`."""
    trained = [one for one in module.parameters() if one.requires_grad]
    for parameter in trained[:: HOOKS[kind].every]:
        parameter.register_post_accumulate_grad_hook(HOOKS[kind].make())
