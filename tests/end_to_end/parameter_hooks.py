"""Post-accumulate hooks that tests give to parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def stepping(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> None:
    """Have each parameter updated by an optimizer of its own as its gradient is there, which is dropped then."""
    own = {p: optimizer([p], lr=0.1) for p in model.parameters() if p.requires_grad}

    def hook(parameter: Tensor) -> None:
        own[parameter].step()
        parameter.grad = None

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(hook)


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)
