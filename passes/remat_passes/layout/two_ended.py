"""Two stacks that grow towards each other, as Coop lays out its memory pool, with the whole step known.

    address 0 ├─ blocks that stay ──►     free     ◄── blocks that come and go ─┤ end of the arena

Coop puts tensors that are cheap to recompute for their size at one end and all others at the other, so that what it
evicts, the cheap ones, lies side by side and leaves one large gap; here the blocks' costs say which are cheap.  A plan
knows what it recomputes, so that nothing is evicted; where no costs are known, the blocks that live long and those that
do not take one end each, which keeps short lives from making holes between long ones.

At each end, blocks are placed by first fit.  The arena is as high as the two stacks together at any moment, and no
block goes into a gap of the other stack.

Source: Coop (NeurIPS 2023), section 3.4, cheap tensor partitioning, and Table 1 for the costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.layout import Layout, LayoutProblem
from remat_passes.layout.orders import first_fit, orders
from remat_passes.layout.units import IntArray, Units

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TwoEnded:
    """Blocks of short lives, or that are cheap to compute again, at one end of the arena, all others at the other.

    Attributes:
        dear_ns_per_kib: A block is cheap below so much time per 1024 bytes.  Coop measured 33 to 89 ns
            for them in convolutions and products of matrices, and at most 5 in all else.
        long_lives: Where no costs are known, the share of the step from which on a life is long.
    """

    name: ClassVar[str] = "two_ended"
    dear_ns_per_kib: int = 20
    long_lives: float = 0.5

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`, by the order with the smallest arena."""
        units = Units.of(problem)
        at_start = self._dear(problem, units) if problem.costs_ns else self._long(units)
        layouts = list(_layouts(units, at_start))
        return units.layout(self.name, min(layouts, key=units.height))

    def _dear(self, problem: LayoutProblem, units: Units) -> BoolArray:
        """The blocks that are dear for their size."""
        # Python's integers, since the products may be large.
        dear = [
            problem.costs_ns[i] * 1024 >= self.dear_ns_per_kib * problem.blocks[i].size_bytes
            for i in units.index.tolist()
        ]
        return np.array(dear, np.bool_)

    def _long(self, units: Units) -> BoolArray:
        """The blocks that live long."""
        if not len(units):
            return np.zeros(0, np.bool_)
        step = int(units.stop.max() - units.start.min())
        return np.asarray((units.stop - units.start) >= self.long_lives * step)


def _layouts(units: Units, at_start: BoolArray) -> Iterator[IntArray]:
    """Offsets by one order after the other, in units."""
    ends = [np.flatnonzero(at_start), np.flatnonzero(~at_start)]
    low, high = (units.choose(which) for which in ends)
    for low_order, high_order in zip(orders(low), orders(high)):
        from_start, from_end = first_fit(low, low_order), first_fit(high, high_order)
        offsets = np.zeros(len(units), np.int64)
        offsets[ends[0]] = from_start
        top = _height_together(low, from_start, high, from_end)
        offsets[ends[1]] = top - from_end - high.size
        yield offsets


def _height_together(low: Units, from_start: IntArray, high: Units, from_end: IntArray) -> int:
    """The height of both stacks at the moment at which they are highest together."""
    moments = np.unique(np.concatenate([low.start, high.start]))
    together = _heights(low, from_start, moments) + _heights(high, from_end, moments)
    return int(together.max(initial=0))


def _heights(units: Units, offsets: IntArray, moments: IntArray) -> IntArray:
    """The height of a stack at each moment."""
    heights = np.zeros(len(moments), np.int64)
    begin, end = np.searchsorted(moments, units.start), np.searchsorted(moments, units.stop)
    for a, b, top in zip(begin.tolist(), end.tolist(), (offsets + units.size).tolist()):
        np.maximum(heights[a:b], top, out=heights[a:b])
    return heights
