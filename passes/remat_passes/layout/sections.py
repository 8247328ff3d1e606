"""Time cut into sections, and which blocks meet: what the search asks about lives.

A new section begins with the first allocation after something was freed, so that every largest set of blocks that are
alive together is one section, and two blocks meet exactly where they share a section:

    block 0  ├───────────┤
    block 1     ├──┤
    block 2             ├────┤
    section    0   0    1    1     (block 0 is in both sections)

Source: MiniMalloc (Moffitt, ASPLOS 2023), its preprocessing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_passes.layout.units import IntArray, Units
from remat_passes.sequences.jit import compiled

ShortArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """Lives as ranges of sections.

    Attributes:
        first: First section of each block.
        last: One past its last section.
        count: Number of sections.
    """

    first: IntArray
    last: IntArray
    count: int

    @staticmethod
    def of(units: Units) -> Sections:
        """The sections of all blocks."""
        first, last = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
        # What ends at a moment is gone before what begins at it.
        events = sorted(
            [(int(stop), 0, i) for i, stop in enumerate(units.stop)]
            + [(int(start), 1, i) for i, start in enumerate(units.start)]
        )
        section, freed = 0, False
        for _, begins, i in events:
            if begins:
                section += freed
                freed = False
                first[i] = section
            else:
                freed = True
                last[i] = section + 1
        return Sections(first, last, section + 1 if len(units) else 0)

    def totals(self, size: IntArray) -> IntArray:
        """Units alive in each section."""
        delta = np.zeros(self.count + 1, np.int64)
        np.add.at(delta, self.first, size)
        np.subtract.at(delta, self.last, size)
        return np.cumsum(delta[:-1])


def partitions(units: Units) -> list[IntArray]:
    """The blocks in groups that share no moment, each of which is a problem by itself; positions, ascending."""
    groups: list[list[int]] = []
    end = 0
    for i in np.lexsort((units.stop, units.start)).tolist():
        if not groups or units.start[i] >= end:
            groups.append([])
            end = int(units.stop[i])
        groups[-1].append(i)
        end = max(end, int(units.stop[i]))
    return [np.array(sorted(group), np.int64) for group in groups]


@compiled
def count_meetings(first: IntArray, last: IntArray) -> int:
    """Pairs of blocks that share a section, each counted from both sides."""
    count = last.max()
    begun = np.zeros(count + 1, np.int64)
    ended = np.zeros(count + 1, np.int64)
    for i in range(len(first)):
        begun[first[i] + 1] += 1
        ended[last[i]] += 1
    for s in range(count):
        begun[s + 1] += begun[s]
        ended[s + 1] += ended[s]
    total = 0
    for i in range(len(first)):
        # Those that have begun before its end, less those that have ended by its start, less itself.
        total += begun[last[i]] - ended[first[i]] - 1
    return total


@compiled
def meetings(first: IntArray, last: IntArray, total: int) -> tuple[IntArray, ShortArray]:
    """The blocks that each block meets, one list behind the other: where each list starts, and the lists."""
    n = len(first)
    order = np.argsort(first)
    start = np.zeros(n + 1, np.int64)
    for a in range(n):
        i = order[a]
        b = a + 1
        while b < n and first[order[b]] < last[i]:
            start[i + 1] += 1
            start[order[b] + 1] += 1
            b += 1
    for i in range(n):
        start[i + 1] += start[i]
    fill = start[:-1].copy()
    met = np.empty(total, np.int32)
    for a in range(n):
        i = order[a]
        b = a + 1
        while b < n and first[order[b]] < last[i]:
            j = order[b]
            met[fill[i]] = j
            met[fill[j]] = i
            fill[i] += 1
            fill[j] += 1
            b += 1
    return start, met
