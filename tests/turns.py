"""Which tests wait for a later run, where they take turns.

``long_tests.txt`` names them: files, tests, and tests of which only the cases take turns (models, budgets, inner
compilers; their names end with ``[]``).  All others run each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable

TURNS = 4
"""What takes turns runs at least once in so many in a row; cases of tests that take turns, in their square."""


def waiting(grouped: Iterable[tuple[Hashable, str]], turn: int) -> set[str]:
    """The names that do not run at a turn; of each group, some do.

    They come in an order without meaning: each fourth case as they are declared may have the same value of a parameter.

    Args:
        grouped: Groups with names of what takes turns in them; a name may come several times.
        turn: Number of the turn.
    """
    groups: dict[Hashable, dict[str, None]] = {}
    for group, name in grouped:
        groups.setdefault(group, {})[name] = None
    return {
        name
        for names in groups.values()
        for position, name in enumerate(sorted(names, key=_mixed))
        if (position - turn) % min(TURNS, len(names))
    }


def _mixed(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
