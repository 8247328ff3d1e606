"""Operators for which a build of torch without CUDA has no kernel of a GPU, and which it would write out in others.

A GPU has one kernel for each of them, and so has the CPU; what the others make in between is never there.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

_FUSED = ("aten::silu_backward", "aten::mish_backward")


def enter_kernels(stack: ExitStack) -> None:
    """Let these operators be operators of CUDA, which modes see, until `stack` is closed."""
    missing = [name for name in _FUSED if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")]
    if not missing:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    stack.callback(library._destroy)
    for name in missing:
        library.impl(name, _never, "CUDA")  # type: ignore[no-untyped-call]


def _never(*_: Any) -> Any:
    raise AssertionError("tensors on paper never reach a kernel")
