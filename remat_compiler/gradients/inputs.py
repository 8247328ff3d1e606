"""The inputs of a graph whose gradients are to leave within its backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.options import RematOptions

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def leaving_inputs(options: RematOptions, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the inputs whose post-accumulate hooks can run within the backward; see `accumulated_inputs`."""
    return tuple(sorted(hooked(inputs, accumulated_inputs(options, inputs))))


def hooked(inputs: Sequence[Any], positions: Iterable[int]) -> set[int]:
    """Those of `positions` whose inputs have post-accumulate hooks."""
    return {i for i in positions if inputs[i]._post_accumulate_grad_hooks}


def accumulated_inputs(options: RematOptions, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the inputs whose gradients can be added up within the backward: plain leaves.

    Not so if another mechanism has the gradients: a hook on the gradient itself, a module that averages gradients over
    ranks, a backward that is compiled as a whole, or a layout in which values of the step have fixed places.  Nor if
    autograd casts them, as `Tensor.grad_dtype` asks for.
    """
    if options.layout == "planned" or torch_compat.gradients_are_averaged() or torch_compat.compiles_autograd():
        return ()
    return tuple(i for i, one in enumerate(inputs) if _is_plain_leaf(one))


def _is_plain_leaf(one: Any) -> bool:
    # On paper, what stands for a parameter is plain, too.
    if type(one) not in _PLAIN and not torch_compat.any_fake([one]):
        return False
    if not (one.is_leaf and one.requires_grad and one.layout is torch.strided):
        return False
    return not one._backward_hooks and not torch_compat.casts_gradient(one)
