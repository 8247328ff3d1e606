"""Exceptions on their way through Dynamo to the user."""

from __future__ import annotations

from typing import Any, cast

from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import RestartAnalysis, ShortenTraceback

DynamoRestart = RestartAnalysis
"""Raised through a compilation to make Dynamo trace the function again, with what it learnt of it."""

_ARGS: Any = BaseException.args
"""Descriptor of an exception's arguments, for classes that define `args` otherwise."""


class _Shown(ShortenTraceback):
    """An exception that Dynamo shows as it is, without its own frames or the advice to report a bug to PyTorch."""

    def remove_dynamo_frames(self) -> Any:
        """The exception without its traceback, none of which concerns the user; Dynamo calls this before raising it."""
        return self if dynamo_config.verbose else self.with_traceback(None)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments it was made with.

        Dynamo adds its advice, and the place in the user's code, by setting them: that is ignored.
        """
        return cast("tuple[Any, ...]", _ARGS.__get__(self))

    @args.setter
    def args(self, advised: tuple[Any, ...]) -> None:
        pass


def pass_through_dynamo(error: Exception) -> Exception:
    """An exception of the same type that Dynamo shows to the user as it is, rather than wrapped."""
    kind = type(error)
    # Of the user's type, so that `except` finds it, and under its name in the traceback.
    shown = type(kind.__name__, (kind, _Shown), {"__module__": kind.__module__})
    # Without its `__init__`, whose parameters need not be the arguments that the exception ends up with.
    copied: Exception = shown.__new__(shown, *error.args)
    copied.__dict__.update(error.__dict__)
    _ARGS.__set__(copied, error.args)
    copied.first_useful_frame = None  # type: ignore[attr-defined]
    return copied
