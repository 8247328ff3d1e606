"""Counts the registrations of post-accumulate hooks, so that graphs need not look at each parameter in each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from remat_compiler.torch_compat.patches import HOOK_REGISTRATIONS
from remat_compiler.torch_compat.patching import replace

_count = [0]


def hook_registrations() -> list[int]:
    """How many there were since this was first called: a list of one number, which goes on counting."""
    _counted()
    return _count


@cache
def _counted() -> None:
    replace(HOOK_REGISTRATIONS, _counting)


def _counting(register: Callable[..., Any]) -> Callable[..., Any]:
    def register_post_accumulate_grad_hook(self: Any, hook: Any) -> Any:
        _count[0] += 1
        return register(self, hook)

    return register_post_accumulate_grad_hook
