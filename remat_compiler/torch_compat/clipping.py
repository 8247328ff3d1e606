"""Refuses to clip the gradients of parameters that are updated, and rid of them, within the backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from weakref import ref

import torch

from remat_compiler.torch_compat.patches import GRADIENT_CLIPPING
from remat_compiler.torch_compat.patching import replace

# By identity, since tensors compare element by element.
_served: dict[int, ref[torch.Tensor]] = {}


def refuse_clipping(parameters: Iterable[torch.Tensor]) -> None:
    """Have `torch.nn.utils.clip_grad_norm_` raise a ValueError where it is to clip these parameters' gradients."""
    _served.update((id(one), ref(one)) for one in parameters)
    _patched()


@cache
def _patched() -> None:
    replace(GRADIENT_CLIPPING, _refusing)


def _refusing(clip: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grads_with_norm(parameters: Any, max_norm: float, *args: Any, **keywords: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        # Trainers that only want to know the norm name no limit.
        if math.isfinite(max_norm) and any(_is_served(one) for one in given):
            raise ValueError(
                "gradients cannot be clipped by their norm: step_in_backward updates each parameter as its gradient "
                "is made, before all of them are known; clip by value in a hook on the gradients, or step after the "
                "backward"
            )
        return clip(given, max_norm, *args, **keywords)

    return clip_grads_with_norm


def _is_served(one: torch.Tensor) -> bool:
    known = _served.get(id(one))
    return known is not None and known() is one
