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
    """

    name: ClassVar[str] = "portfolio"
    work: int = 300_000_000

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`; the arena is at least as small as every order makes it."""
        units = Units.of(problem)
        offsets = best_first_fit(units)
        return units.layout(self.name, minimise(units, offsets, self.work).offsets)


def best_first_fit(units: Units) -> IntArray:
    """Offsets by the order with the smallest arena, in units; by the first of equals."""
    bound, best = largest_live(units), np.cumsum(units.size) - units.size
    for offsets in first_fits(units):
        if units.height(offsets) < units.height(best):
            best = offsets
        if units.height(best) == bound:
            break
    return best
