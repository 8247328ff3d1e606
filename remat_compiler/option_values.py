"""Checks of single values that a user gives: each returns the value in its final type, or raises `OptionError`.

Messages show the value that was given, shortened if it is long; numbers too large for a float count as infinite.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path

from remat_compiler.errors import OptionError, suggestion

_LONGEST = 100
MOST = 1_000_000
"""Largest count that an option may have."""
AS_PLANNED = 0
"""Number of chunks that stands for as many as make the cheapest plan."""


def shown(value: object) -> str:
    """`value` as a message prints it: its `repr`, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:
        # Python prints no whole number of more than some thousand digits.
        return f"a whole number of about {int(value).bit_length() * 3 // 10} digits" if isinstance(value, int) else "?"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def as_float(value: Real) -> float:
    """`value` as a float, infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """`value`, when it is one of the `allowed` words."""
    words = tuple(allowed)
    if not isinstance(value, str):
        raise OptionError(f"{name} must be one of {', '.join(map(repr, words))}, got {shown(value)}")
    if value not in words:
        raise OptionError(f"unknown {name} {shown(value)}{suggestion(value, words)}")
    return value


def switch(name: str, value: object) -> bool:
    """`value`, when it is a bool."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, got {shown(value)}")
    return value


def folder(name: str, value: object) -> Path | None:
    """`value` as the path of a folder, with ``~`` expanded; `None` for none."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise OptionError(f"{name} must be the path of a folder or None, got {shown(value)}")
    path = os.fsdecode(value)
    # Refused here, by name: later, each use of the path would raise a ValueError that no one expects.
    if "\0" in path:
        raise OptionError(f"{name} must be the path of a folder, which holds no null character, got {shown(path)}")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise OptionError(
            f"{name} must be the path of a folder, and the home directory that {shown(path)} begins with is not known; "
            "write the whole path"
        ) from error


def positive(name: str, value: object) -> float:
    """`value` as a finite number above 0."""
    # `True` is a number to Python, here and below, but never what a user means by one.
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < as_float(value) < math.inf:
        raise OptionError(f"{name} must be a finite number above 0, got {shown(value)}")
    return as_float(value)


def slowdown(name: str, value: object) -> float | None:
    """`value` as a limit of the step's relative time; `None` for no limit, and for numbers too large for a float."""
    # Infinity is a way to say "no limit"; a factor below 1 would ask recomputation to save time.
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is None or (isinstance(value, Real) and is_number and as_float(value) == math.inf):
        return None
    limit = positive(name, value)
    if limit < 1.0:
        raise OptionError(f"{name} must be at least 1.0 (times the step), or None for no limit, got {shown(value)}")
    return limit


def seconds(name: str, value: object) -> float | None:
    """`value` as a finite number of at least 0, or `None`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= as_float(value) < math.inf:
        raise OptionError(f"{name} must be a finite number of at least 0, or None, got {shown(value)}")
    return as_float(value)


def count(name: str, value: object, least: int) -> int:
    """`value` as a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if int(value) > MOST:
        raise OptionError(f"{name} must be a whole number of at most {MOST}, got {shown(value)}")
    return int(value)


def chunks(value: object) -> int:
    """`value` as the most chunks; ``"never"`` is 1, ``"auto"`` is `AS_PLANNED`."""
    words = {"auto": AS_PLANNED, "never": 1}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= MOST:
        raise OptionError(
            f'chunks must be "auto", "never" or a whole number from 1 to {MOST} (the most chunks), got {shown(value)}'
        )
    return int(value)


def number_text(text: str) -> object:
    """The number in a text, `None` for the word ``none``, else the text itself, which a check refuses."""
    if text.strip().lower() == "none":
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
