"""Numbers that kernels of a GPU are given: those in tensors on the CPU, which a wrapper reads as it starts the kernels.

    triton_poi_fused_mul_0.run(buf0, primals_2.item(), buf1, 4096, stream=stream0)

A tensor without dimensions on the CPU is such a number, and a Python float that changes from step to step becomes one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_GIVES_NUMBER = re.compile(r"\.run\(.*\.item\(\)")
_READS_NUMBER = torch.ops.aten._local_scalar_dense.default


def numbers_for_kernels(filename: str, source: str) -> AbstractContextManager[Any]:
    """Within the block, fake tensors have a number for each kernel that the wrapper starts.

    No kernel runs, so any number will do.  A wrapper that reads a size has none: that one matters.

    Args:
        filename: File name in the wrapper's code.
        source: Its text.
    """
    lines = {number for number, line in enumerate(source.splitlines(), 1) if _GIVES_NUMBER.search(line)}
    # Most wrappers give none, and a mode is asked at each operator.
    return _Numbers(filename, frozenset(lines)) if lines else nullcontext()


class _Numbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what is read on the given lines."""

    def __init__(self, filename: str, lines: frozenset[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._filename, self._lines = filename, lines

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _READS_NUMBER and self._starts_kernel(sys._getframe(1)):
            return 1
        return func(*args, **(kwargs or {}))

    def _starts_kernel(self, frame: FrameType | None) -> bool:
        # Functions of torch lie between the wrapper and this mode.
        while frame is not None and frame.f_code.co_filename != self._filename:
            frame = frame.f_back
        return frame is not None and frame.f_lineno in self._lines
