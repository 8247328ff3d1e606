"""Samples of torch's database of operators: how they lie in memory, and what an operator says to those it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AssertionError)
"""Of samples for other devices, and layouts that an operator does not take."""


def transposed(value: Any) -> Any:
    """A tensor of the same values whose last two dimensions are swapped in memory."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.dim() < 2:
        return value
    swapped = value.detach().transpose(-1, -2).contiguous().transpose(-1, -2)
    return swapped.requires_grad_(value.requires_grad)


LAYOUTS: dict[str, Callable[[Any], Any]] = {"plain": lambda value: value, "transposed": transposed}
