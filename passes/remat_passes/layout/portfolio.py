"""The layout planner of the product: several orders at once, and a search of little work where they leave a gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.ir.layout import Layout, LayoutProblem
from remat_passes.layout.minimise import minimise
from remat_passes.layout.orders import first_fits
from remat_passes.layout.units import IntArray, Units, largest_live


@dataclass(frozen=True)
class Portfolio:
    """First fit in several orders, then a search of limited work, until the largest live bytes are reached.

    Attributes:
        work: Most blocks and sections that the search may look at, for each part of the step that shares no time with
            the others: a hundred million take about half a second.  0: no search.
        near: There is no search for an arena that is larger than the largest live bytes by at most this share of them.
    """

    name: ClassVar[str] = "portfolio"
    work: int = 300_000_000
    near: float = 0.001

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`; the arena is no larger than any of the orders makes it."""
        units = Units.of(problem)
        offsets = best_first_fit(units)
        if units.height(offsets) > (1 + self.near) * largest_live(units):
            offsets = minimise(units, offsets, self.work).offsets
        return units.layout(self.name, offsets)


def best_first_fit(units: Units) -> IntArray:
    """Offsets by the order with the smallest arena, in units; by the first of equals."""
    bound, best = largest_live(units), np.cumsum(units.size) - units.size
    for offsets in first_fits(units):
        if units.height(offsets) < units.height(best):
            best = offsets
        if units.height(best) == bound:
            break
    return best
