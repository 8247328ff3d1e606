"""The smallest arena that a search of limited work finds: capacities and orders in turn, with growing limits.

The search of `canonical` answers for one capacity and one order of blocks.  How long it takes says little beforehand:
with one order it ends at once, with another never.  So every order gets a little work at every capacity, then twice as
much, until the arena is as small as the bound or the work is used up.  The first capacity lies a quarter of the way up
from the bound to the best known arena, where large steps are found at once that are not found at the bound.

Source: MiniMalloc (Moffitt, ASPLOS 2023), for the orders and for taking them in turn; it asks about one given capacity,
and always counts T anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_passes.layout.canonical import FOUND, LIMIT, NONE, search
from remat_passes.layout.sections import Sections, ShortArray, count_meetings, meetings, partitions
from remat_passes.layout.units import IntArray, Units, largest_live

ORDERS = (("TWA", True), ("TWA", False), ("TAW", True), ("WAT", False))
"""Ranks, most important key first, the largest first, and whether T is counted anew in parts of the problem.

T: units alive in the fullest section of the block; W: how long it lives; A: its units times that."""
STEPS = (4, 1, 0, 16)
"""Where capacities are tried, in turn, between the lower bound (0) and the best known arena (`PARTS`)."""
PARTS = 16
MOST_MEETINGS = 1 << 23
"""Pairs of blocks that meet, counted from both sides, up to which there is a search: 32 MiB for each order."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What is known of one problem.

    Attributes:
        offsets: The best offsets, in units.
        height: Units of the arena that they take.
        bound: No arena has fewer units.
    """

    offsets: IntArray
    height: int
    bound: int


def minimise(units: Units, offsets: IntArray, limit: int, goal: int = 0) -> Found:
    """Make the arena of a layout smaller.

    Args:
        units: The blocks.
        offsets: A layout, in units.
        limit: Work of the search, in blocks and sections that it looks at, for each of the parts that share no time.
        goal: Units of an arena that is small enough: the search asks for it alone.  0: as small as possible.
    """
    best, bound = offsets.copy(), 0
    # The part that needs most says what is small enough for the others.
    parts = sorted(partitions(units), key=lambda which: -largest_live(units.choose(which)))
    for which in parts:
        search = _Search.of(units.choose(which), best[which])
        search.run(max(goal, bound), limit)
        best[which], bound = search.offsets, max(bound, search.bound)
    return Found(best, units.height(best), bound)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Blocks in one order.

    Attributes:
        order: Position of each block before.
        size, first, last, near_start, near, by_total: What `canonical.search` asks for.
    """

    order: IntArray
    size: IntArray
    first: IntArray
    last: IntArray
    near_start: IntArray
    near: ShortArray
    by_total: bool

    @property
    def descent(self) -> int:
        """About the work of a search that never turns back: each block is placed, and all that it meets looked at."""
        return 2 * len(self.near) + 32 * len(self.size)

    @staticmethod
    def by(keys: str, by_total: bool, units: Units, sections: Sections) -> Ranked:
        """One of `ORDERS`."""
        totals, life = sections.totals(units.size), units.stop - units.start
        fullest = [totals[a:b].max() for a, b in zip(sections.first, sections.last)]
        values = {"T": np.array(fullest, np.int64), "W": life, "A": life * units.size}
        # The last key is the most important one to numpy; equal blocks stay as they come.
        order = np.lexsort([-values[key] for key in reversed(keys)])
        first, last = sections.first[order], sections.last[order]
        start, near = meetings(first, last, count_meetings(first, last))
        return Ranked(order, units.size[order], first, last, start, near, by_total)

    def search(self, capacity: int, limit: int) -> tuple[int, int, IntArray]:
        """As `canonical.search`, with the offsets in the order before."""
        low = np.zeros(len(self.order), np.int64)
        answer, work = search(
            self.size, self.first, self.last, self.near_start, self.near, self.by_total, capacity, limit, low
        )
        offsets = np.empty_like(low)
        offsets[self.order] = low
        return answer, work, offsets


@dataclass(slots=True, eq=False)
class _Search:
    """The search for one part.

    Attributes:
        orders: Its blocks in each order.
        offsets: The best offsets so far.
        height: Units that they take.
        bound: No arena has fewer units.
    """

    orders: list[Ranked]
    offsets: IntArray
    height: int
    bound: int

    @staticmethod
    def of(units: Units, offsets: IntArray) -> _Search:
        """A search that begins with a layout."""
        height, bound = units.height(offsets), largest_live(units)
        if height <= bound:
            return _Search([], offsets, height, bound)
        sections = Sections.of(units)
        if count_meetings(sections.first, sections.last) > MOST_MEETINGS:
            return _Search([], offsets, height, bound)
        return _Search([Ranked.by(*order, units, sections) for order in ORDERS], offsets, height, bound)

    def run(self, goal: int, limit: int) -> None:
        """Until `goal` or `bound` is reached, or the work is done."""
        each = self.orders[0].descent if self.orders else 0
        while self.orders and limit > 0 and self.height > max(goal, self.bound):
            before = self.height
            for capacity in self._capacities(goal):
                limit -= self._try(capacity, min(each, limit))
                if self.height < before:
                    break
            else:
                each *= 2

    def _capacities(self, goal: int) -> list[int]:
        """What to try next."""
        least = max(goal, self.bound)
        if goal >= self.bound and goal:
            return [goal]
        return list(dict.fromkeys(least + (self.height - 1 - least) * step // PARTS for step in STEPS))

    def _try(self, capacity: int, limit: int) -> int:
        """Each order once, until one has an answer; the work."""
        used = 0
        for ranked in self.orders if capacity >= self.bound else ():
            answer, work, offsets = ranked.search(capacity, limit)
            used += work
            if answer == FOUND:
                self.offsets, self.height = offsets, int((offsets[ranked.order] + ranked.size).max())
            if answer == NONE:
                # No order finds what does not exist.
                self.bound = capacity + 1
            if answer != LIMIT:
                break
        # What is answered by the bound must not go on for ever.
        return max(used, 1)
