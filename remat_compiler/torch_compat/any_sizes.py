"""Code for any sizes: nothing is assumed of those that are computed from the sizes of the inputs.

Of a size that changes torch assumes, with a guard, that it is neither 0 nor 1 where it is another in the traced inputs.
Sizes of chunks may well be: such a guard fails for a few rows, and no code would be left for them.  In these blocks
torch writes the code of the general case, which serves sizes of 0 and 1 as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx_inner
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.torch_compat.patches import SIZE_ASSUMPTIONS
from remat_compiler.torch_compat.patching import settings

# By thread: other threads compile unplanned graphs meanwhile.
_planned = threading.local()


@contextmanager
def any_sizes() -> Iterator[None]:
    """Within the block nothing is assumed of sizes that change."""
    with settings({SIZE_ASSUMPTIONS: True}):
        yield


@contextmanager
def shapes_at_any_sizes(mode: FakeTensorMode) -> Iterator[None]:
    """Within the block operators on fake tensors give results whose shapes hold at any sizes, without a guard on one.

    Some ask whether a tensor is empty, and give the same shapes if it is.
    """
    with ExitStack() as stack:
        for block in (mode, torch.no_grad(), any_sizes()):
            stack.enter_context(block)
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        yield


def serve_any_sizes(serves: bool) -> None:
    """Whether Inductor is to assume nothing of sizes in graphs that this thread compiles from now on."""
    _planned.any_sizes = serves


@functools.wraps(compile_fx_inner)
def compile_inner(*arguments: Any, **keywords: Any) -> Any:
    """Inductor's own compilation of the forward or the backward."""
    # Not around both: what AOTAutograd does between them would take sizes of saved values for numbers.
    with any_sizes() if getattr(_planned, "any_sizes", False) else nullcontext():
        return compile_fx_inner(*arguments, **keywords)
