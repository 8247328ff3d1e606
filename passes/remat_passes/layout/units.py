"""A layout problem in units of its alignment: the form in which all planners of this folder place blocks.

A block of 100 bytes that must stand at a multiple of 64 takes two units, since nothing else can begin in its second
one.  Blocks without bytes are in nobody's way and take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.layout import Layout, LayoutProblem

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The blocks of a problem that take memory.

    Attributes:
        problem: The problem.
        index: The position of each of these blocks in the problem, ascending.
        size: Size of each, in units of the alignment.
        start: Moment at which each is allocated.
        stop: First moment at which each is gone.
    """

    problem: LayoutProblem
    index: IntArray
    size: IntArray
    start: IntArray
    stop: IntArray

    @staticmethod
    def of(problem: LayoutProblem) -> Units:
        """The blocks of `problem` that take memory."""
        taken = [i for i, block in enumerate(problem.blocks) if block.size_bytes]
        blocks, unit = [problem.blocks[i] for i in taken], problem.alignment_bytes
        return Units(
            problem,
            np.array(taken, np.int64),
            np.array([-(-block.size_bytes // unit) for block in blocks], np.int64),
            np.array([block.start for block in blocks], np.int64),
            np.array([block.stop for block in blocks], np.int64),
        )

    def __len__(self) -> int:
        return len(self.index)

    def choose(self, which: IntArray) -> Units:
        """Some of the blocks."""
        return Units(self.problem, self.index[which], self.size[which], self.start[which], self.stop[which])

    def height(self, offsets: IntArray) -> int:
        """Units up to the highest block, for blocks at `offsets`."""
        return int((offsets + self.size).max(initial=0))

    def layout(self, planner: str, offsets: IntArray) -> Layout:
        """The layout with the blocks at `offsets`, in units; those without bytes stand at 0."""
        places = [0] * len(self.problem.blocks)
        for i, offset in zip(self.index.tolist(), offsets.tolist()):
            places[i] = offset * self.problem.alignment_bytes
        return Layout(planner, tuple(places), arena_bytes(self.problem, places))


def arena_bytes(problem: LayoutProblem, offsets: Sequence[int]) -> int:
    """The highest byte that the blocks at `offsets` take."""
    return max((at + block.size_bytes for at, block in zip(offsets, problem.blocks)), default=0)


def largest_live(units: Units) -> int:
    """Most units that are alive at one moment: no arena is smaller."""
    if not len(units):
        return 0
    moments = np.concatenate([units.start, units.stop])
    change = np.concatenate([units.size, -units.size])
    # What ends at a moment is gone before what begins at it: lives are half-open.
    order = np.lexsort((change, moments))
    return int(np.cumsum(change[order]).max())
