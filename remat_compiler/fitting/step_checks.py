"""Where the tensors of a step must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.errors import OptionError

DEVICE = torch.device("cuda", 0)
"""Where steps are made."""


def check_on_paper(part: str, tensors: Mapping[Any, torch.Tensor]) -> None:
    """Raises `OptionError` for a tensor with real memory."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch_compat.FakeTensor):
            raise OptionError(
                f"{part} have the tensor {name!r} in real memory ({tensor.numel() * tensor.element_size()} bytes on "
                f"{tensor.device}); give a function that makes its tensors itself, when it is called"
            )


def check_on_device(part: str, tensors: Mapping[Any, torch.Tensor]) -> None:
    """Raises `OptionError` for a tensor on another device."""
    for name, tensor in tensors.items():
        if tensor.device != DEVICE:
            raise OptionError(
                f"{part} have the tensor {name!r} on {tensor.device}, and the step is to fit {DEVICE}; leave the "
                "device open, or name cuda"
            )
