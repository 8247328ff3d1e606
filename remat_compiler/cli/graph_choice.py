"""The option ``--graph`` of commands that read a dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from remat_compiler.errors import UnknownName

Item = TypeVar("Item")


def of_graph(asked: str | None, found: Sequence[Item], name_of: Callable[[Item], str]) -> list[Item]:
    """What was found of the graph that is asked for; of all of them if none is.

    Raises:
        UnknownName: There is no graph of that name.
    """
    names = [name_of(one) for one in found]
    if asked is not None and asked not in names:
        raise UnknownName("graph", asked, names)
    return [one for one, name in zip(found, names) if asked in (None, name)]
