"""Which cases of a test wait for a later run, where the cases of each test take turns."""

from __future__ import annotations

from collections.abc import Iterable

TURNS = 4
"""Each case runs at least once in so many turns in a row."""


def waiting(cases: Iterable[str], turn: int) -> set[str]:
    """The cases that do not run at a turn; each test has a case that does.

    Args:
        cases: Names as pytest has them: ``test_a_budget_is_kept[inductor-0.8]``.
        turn: Number of the turn.
    """
    of_test: dict[str, list[str]] = {}
    for case in cases:
        of_test.setdefault(case.partition("[")[0], []).append(case)
    return {
        case
        for together in of_test.values()
        for position, case in enumerate(together)
        if (position - turn) % min(TURNS, len(together))
    }
