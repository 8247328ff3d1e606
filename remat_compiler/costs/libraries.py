"""Workspaces that cuBLAS keeps: one for each thread's handle, from the first product that the thread runs on.

    step 1   parameters | activations ... logits, gradient of the logits | workspace      made at the peak, and kept
    step 2   parameters | state | activations ... logits                 | workspace | gradient of the logits

The backward runs on a thread of autograd's, whose first product comes as memory is at its highest.  So what lies below
its workspace is as large as the first step was.  Later steps have the optimizer's state beside them, and their largest
value finds no place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from remat_compiler.operators.table import row_of
from remat_compiler.simulate.lives import Life

_BYTES = {9: 32 * 2**20, 10: 32 * 2**20}
_DEFAULT_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""Workspace for a handle on a stream (``getChosenWorkspaceSize`` in ``CUDABlas.cpp``): by major compute capability: 32
MiB of Hopper and Blackwell's data center GPUs, else ``:4096:2:16:8``."""
THREADS = ("forward", "backward")
"""Each thread has a handle of its own (``CublasHandlePool.cpp``): the program's has, and autograd's of the device."""


class Moment(Protocol):
    """An operator that ran."""

    @property
    def phase(self) -> str:
        """The phase of the step."""

    @property
    def label(self) -> str:
        """The operator, as ``aten.mm.out``, or a kernel."""


def kept_bytes(capability: Sequence[int]) -> int:
    """The workspace of one handle on a GPU of that compute capability."""
    return _BYTES.get(capability[0], _DEFAULT_BYTES)


def kept_lives(moments: Iterable[Moment], capability: Sequence[int]) -> tuple[Life, ...]:
    """The workspaces that the first of some equal steps makes and leaves, in their order.

    Args:
        moments: The step.
        capability: Compute capability of the GPU.
    """
    first: dict[str, int] = {}
    for position, moment in enumerate(moments):
        # The optimizer runs on the program's thread.
        thread = THREADS[moment.phase == THREADS[1]]
        if thread not in first and row_of(moment.label.replace(".", "::", 1)).keeps:
            first[thread] = position
    return tuple(Life(kept_bytes(capability), made, None) for made in sorted(first.values()))
