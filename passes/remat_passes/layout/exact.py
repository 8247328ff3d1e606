"""MiniMalloc's canonical search, for the smallest arena or for one that is small enough.

Orders, capacities and work are those of `minimise`; the search itself is `canonical`.

Source: MiniMalloc (Moffitt, ASPLOS 2023).  It packs into a given capacity, which here is an option; without it the
smallest arena is looked for, from the lower bound upwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.layout import Layout, LayoutProblem
from remat_passes.layout.minimise import minimise
from remat_passes.layout.portfolio import best_first_fit
from remat_passes.layout.units import Units


@dataclass(frozen=True)
class Exact:
    """The smallest arena, by MiniMalloc's search; by first fit where that does not end within its work.

    "Smallest" is in units of the alignment: what the highest block leaves unused of its last unit is not weighed.

    Attributes:
        capacity_bytes: An arena that is small enough, in whole units of the alignment.  0: the smallest is looked for.
        work: Most blocks and sections that the search may look at, for each part of the step that shares no time with
            the others: a hundred million take about half a second.
    """

    name: ClassVar[str] = "exact"
    capacity_bytes: int = 0
    work: int = 2_000_000_000

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`; above `capacity_bytes` where no smaller arena was found."""
        units = Units.of(problem)
        offsets = best_first_fit(units)
        goal = self.capacity_bytes // problem.alignment_bytes
        return units.layout(self.name, minimise(units, offsets, self.work, goal).offsets)
