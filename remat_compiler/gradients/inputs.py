"""The inputs of a graph whose gradients are to leave within its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.options import RematOptions

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def leaving_inputs(options: RematOptions, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the inputs whose post-accumulate hooks can run within the backward.

    Not so if another mechanism has the gradients: a module that averages them over ranks, or a layout in which values
    of the step have fixed places.
    """
    if options.layout == "planned" or torch_compat.gradients_are_averaged():
        return ()
    return tuple(i for i, one in enumerate(inputs) if _has_hooks(one))


def _has_hooks(one: Any) -> bool:
    """Whether an input is a plain leaf with hooks that run once its gradient is there, and none on the gradient."""
    if type(one) not in _PLAIN or not one.is_leaf or not one.requires_grad or one.layout is not torch.strided:
        return False
    return bool(one._post_accumulate_grad_hooks) and not one._backward_hooks
