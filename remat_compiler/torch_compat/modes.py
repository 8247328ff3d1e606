"""Dispatch modes and the grad mode around a compilation, set aside and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Leave the tracing context, all dispatch modes and the Python dispatcher of a compilation under way, and autocast.

    Autocast's casts are operators of the captured graph already: running the graph under autocast would cast twice.
    """
    with torch._guards.tracing(None), _disable_current_modes(), no_python_dispatcher(), torch._C._DisableAutocast():
        yield


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
