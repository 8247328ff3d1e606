"""Numba for the inner loops of the planners, which run as plain Python under ``NUMBA_DISABLE_JIT=1``.

Numba keeps compiled code on disk, so only the first planning on a machine compiles.  Compiled and plain Python give the
same plans to the byte: the loops use integers, and floating point only in single IEEE operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import types

Function = TypeVar("Function", bound=Callable[..., Any])

_unliteral: Callable[[Any], Any] = types.unliteral


def compiled(function: Function) -> Function:
    """`function` as machine code."""
    return cast("Function", _forgetting(_for_any_number(njit(cache=True)(function))))


def parallel(function: Function) -> Function:
    """`compiled`, for functions that several threads run at once."""
    return cast("Function", _forgetting(_for_any_number(njit(cache=True, nogil=True)(function))))


def inner(function: Function) -> Function:
    """`compiled`, for functions that only compiled functions call: without a Python entry point they compile faster."""
    bare: dict[str, Any] = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Function", _forgetting(_for_any_number(njit(**bare)(function))))


def _for_any_number(dispatcher: Any) -> Any:
    """Let calls with literal numbers share the code of all others; Numba would compile a version for each literal."""
    # ``NUMBA_DISABLE_JIT=1`` returns the function itself, which has neither this nor a cache.
    original = getattr(dispatcher, "get_call_template", None)
    if original is not None:

        def template(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
            # Types only: the values are passed as they are.
            plain = tuple(map(_unliteral, arguments))
            return original(plain, {name: _unliteral(argument) for name, argument in keywords.items()})

        dispatcher.get_call_template = template
    return dispatcher


def _forgetting(dispatcher: Any) -> Any:
    """Compile again when the code on disk cannot be read.

    Numba pickles its index of that code with the types of the arguments.  If one of these types has moved to another
    module since, or a full disk truncated the file, Numba raises, and no plan would be made until someone removes the
    file.
    """
    cache = getattr(dispatcher, "_cache", None)
    original = getattr(cache, "load_overload", None)
    if cache is not None and original is not None:

        def load_overload(*arguments: Any) -> Any:
            try:
                return original(*arguments)
            except (ImportError, AttributeError, EOFError, UnpicklingError):
                # Empties the index, so that the next save writes a readable one; to Numba, `None` means "not on
                # disk".
                cache.flush()
                return None

        cache.load_overload = load_overload
    return dispatcher
