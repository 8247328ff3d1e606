"""The calls of functions and modules that the user compiled, seen from outside of Dynamo's code for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from remat_compiler.torch_compat.patches import COMPILED_CALLS
from remat_compiler.torch_compat.patching import replace

EndsCall = Callable[[], bool]
"""Called after a call; returns whether no further call is to be followed."""
BeginsCall = Callable[[], EndsCall]
"""Called before a call."""

_FOLLOWERS = "_remat_followers"


def follow_compiled(backend: Callable[..., Any], follow: Callable[[Any], BeginsCall]) -> None:
    """Follow the calls of all that is compiled by a backend from now on.

    Args:
        backend: The backend's function.
        follow: Called with each function, bound method or module that is compiled; what it returns follows its calls.
    """

    def following(original: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(self: Any, fn: Any) -> Any:
            # Dynamo compiles a module by compiling its `__call__`, which comes here once more.
            followers = getattr(self, _FOLLOWERS, ())
            if _is_of(self, backend) and follow not in followers:
                setattr(self, _FOLLOWERS, (*followers, follow))
                _add_hook(self, follow(fn))
            return original(self, fn)

        return compiled

    replace(COMPILED_CALLS, following)


def _is_of(context: Any, backend: Callable[..., Any]) -> bool:
    """Whether one of Dynamo's contexts compiles by `backend`, which `torch.compile` wraps together with its options."""
    found: Any = getattr(context, "callback", None)
    while hasattr(found, "_torchdynamo_orig_backend"):
        found = found._torchdynamo_orig_backend
    found = getattr(found, "compiler_fn", found)
    while isinstance(found, partial):
        found = found.func
    return found is backend


def _add_hook(context: Any, begins: BeginsCall) -> None:
    """Have Dynamo call `begins` around each call, until that is enough: later calls cost as much as without it."""

    def enter() -> Callable[[], None]:
        ends = begins()

        def leave() -> None:
            if ends():
                # A new list, since another thread may be walking through the old one.
                context.enter_exit_hooks = [hook for hook in context.enter_exit_hooks if hook is not enter]

        return leave

    context.enter_exit_hooks = [*context.enter_exit_hooks, enter]


def autograd_nodes_made() -> int:
    """A number that grows with each node of autograd that this thread makes."""
    return int(torch._C._autograd._get_sequence_nr())
