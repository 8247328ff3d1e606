"""Where the tensors of a step must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.errors import OptionError

PARAMETERS = "parameters and buffers"
"""The part of a step that the model holds."""


def check_on_paper(part: str, tensors: Mapping[Any, torch.Tensor]) -> None:
    """Raises `OptionError` for a tensor with real memory."""
    for name, tensor in tensors.items():
        # Of a tensor that is sharded or made up of others in another way, those tell.
        if not all(isinstance(one, torch_compat.FakeTensor) for one in torch_compat.wrapped_tensors(tensor)):
            raise OptionError(
                f"{part} have the tensor {name!r} in real memory ({torch_compat.num_bytes(tensor)} bytes on "
                f"{tensor.device}); give a function that makes its tensors itself, when it is called"
            )


def check_on_device(part: str, tensors: Mapping[Any, torch.Tensor], device: torch.device) -> None:
    """Raises `OptionError` for a tensor on another device; some may lie on the CPU, but not all parameters."""
    elsewhere = {name: tensor.device for name, tensor in tensors.items() if tensor.device != device}
    for name, found in elsewhere.items():
        if found.type != "cpu" or (part == PARAMETERS and len(elsewhere) == len(tensors)):
            raise OptionError(
                f"{part} have the tensor {name!r} on {found}, and the step is to fit {device}; leave the "
                f"device open, or name {device.type}"
            )
