"""A sequence with what a search wants to know of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_passes.sequences.profile import Arrays, IntArray, measure

TOLERANCE = 0.03
"""Largest relative increase of added time that a search takes on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A sequence with its exact peak in bytes and its time in ns.

    `barred` sequences take too long, or save what must not be saved.
    """

    steps: IntArray
    boundary: int
    peak: int
    time: int
    barred: bool

    @staticmethod
    def of(g: Arrays, steps: IntArray, boundary: int, limit_ns: int) -> Entry:
        """The entry of a sequence that may take `limit_ns`."""
        peak, time, forbidden = measure(g, steps, boundary)
        return Entry(steps, int(boundary), int(peak), int(time), bool(forbidden or time > limit_ns))

    def follows(self, old: Entry, budget: int, once: int, draw: random.Random) -> bool:
        """Whether a search may go on from here instead of `old`: it fits, and is not slower, or by chance but little.

        `once` is the time of executing every operator once.
        """
        slack = 1.0 + draw.random() ** 4 * TOLERANCE
        return not self.barred and self.peak <= budget and self.time - once <= (old.time - once) * slack

    def plan(self) -> Plan:
        """The sequence as a plan."""
        return Plan(tuple(map(OpId, self.steps.tolist())), self.boundary)
