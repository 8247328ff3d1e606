"""The largest number for which something has room, asked as seldom as possible.

What is left at a number, its *slack*, falls as the number grows, and nearly on a line: bytes of activations grow with
the batch.  So the next numbers to ask are those around the place where the line through two known ones meets zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

FIRST = (16, 64)
"""What is asked first.  Smaller steps are mostly gradients, which do not grow with the batch, and say little of it."""
GROWTH = 4
"""How far beyond the largest known number a line is trusted: it bends where something else becomes the peak."""
LARGEST = 2**20
"""Nothing above is asked."""


def next_numbers(slack: Mapping[int, int], count: int) -> list[int]:
    """What to ask next, at most `count` numbers; empty once the largest number with slack is known.

    Args:
        slack: What is left at each number that was asked; negative where there is no room.
        count: How many questions are answered at a time.
    """
    if not slack:
        return list(FIRST[:count])
    low, high = bracket(slack)
    place = _guessed(slack)
    if high is None:
        return [n for n in (place, place + 1) if n <= LARGEST][:count]
    if high - low <= 1:
        return []
    # The line may be far off where the slack falls in steps; halves of what is left end the search all the same.
    wanted = [place, place + 1, (low + high) // 2]
    inside = [min(max(n, low + 1), high - 1) for n in wanted]
    return list(dict.fromkeys(inside))[:count]


def _guessed(slack: Mapping[int, int]) -> int:
    """The largest number with room by the line through two that were asked, of which there is at least one."""
    low, high = bracket(slack)
    if high is None:
        return max(min(_beyond(slack, low), low * GROWTH, LARGEST), low + 1)
    return _between(slack, low, high) if low else high // 2


def bracket(slack: Mapping[int, int]) -> tuple[int, int | None]:
    """The largest number with room below all that have none, 0 if none has; and the least without room, if known."""
    without = min((n for n, left in slack.items() if left < 0), default=None)
    having = [n for n, left in slack.items() if left >= 0 and (without is None or n < without)]
    return max(having, default=0), without


def estimated(slack: Mapping[int, int]) -> int:
    """The largest number that has room by the lines between those that were asked, 0 if none has."""
    low, high = bracket(slack)
    if high is None or high - low <= 1 or not low:
        return low
    return min(max(_between(slack, low, high), low), high - 1)


def _between(slack: Mapping[int, int], low: int, high: int) -> int:
    """Where the line through both meets zero, rounded down."""
    return low + (high - low) * slack[low] // (slack[low] - slack[high])


def _beyond(slack: Mapping[int, int], low: int) -> int:
    """Where the line through the two largest numbers with room meets zero; double the largest if it does not fall."""
    known = sorted(n for n in slack if n <= low)
    for before, last in list(pairwise(known))[-1:]:
        fall = slack[before] - slack[last]
        if fall > 0:
            return last + (last - before) * slack[last] // fall
    return 2 * low
