"""Another value of any field of the options, or of a request: one that its type allows."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.options import Options

VALUES: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (8, 9),
    float: (1.5,),
    str: ("min_cut",),
    Path: (Path("/elsewhere"),),
    MemoryBudget: (MemoryBudget.parse("min"),),
    Any: (7,),
}


def other(record: Any, name: str) -> Any:
    """A value of the field that is not the one that it has, and not `None`."""
    now, words = getattr(record, name), get_args(get_type_hints(Options).get(name, str))
    if isinstance(now, str) and words:
        return next(word for word in words if word != now)
    return _of(get_type_hints(type(record))[name], now)


def _of(hint: Any, now: Any) -> Any:
    parts = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if get_origin(hint) is tuple:
        return tuple(_of(part, None) for part in parts)
    return _of(parts[0], now) if parts else next(value for value in VALUES[hint] if value != now)
