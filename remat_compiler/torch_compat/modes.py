"""Modes, hooks and the grad mode around a compilation, set aside and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _autograd as _hooks
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

_top_hooks: Callable[[bool], Any] = _hooks._top_saved_tensors_default_hooks


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Leave the tracing context, all modes and the Python dispatcher of a compilation under way, autocast, and hooks.

    Autocast's casts are operators of the captured graph already: running the graph under autocast would cast twice.
    The user's modes and hooks are for values of the program, and see none of another kind.
    """
    with (
        torch._guards.tracing(None),
        _disable_current_modes(),
        no_python_dispatcher(),
        torch._C._DisableAutocast(),
        without_function_modes(),
        _without_saved_tensor_hooks(),
    ):
        yield


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Set aside the modes that see functions of torch, such as a default device."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Set aside the hooks that pack what autograd saves: those of checkpoints, and those that move it elsewhere."""
    aside = []
    # Those that hold while a program is traced are torch's own, and hide the rest.
    while (pair := _top_hooks(True)) is not None:
        aside.append(pair)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(aside):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are entered, the innermost last."""
    return list(_get_current_dispatch_mode_stack())


@contextmanager
def grad_mode_kept() -> Iterator[None]:
    """Put the grad mode back at the end of the block.

    A function may leave gradients off for its caller; then tracing or running it here would leave them off, too.
    """
    enabled = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(enabled)
