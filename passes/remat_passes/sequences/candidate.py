"""A sequence with the figures that a search compares it by."""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_passes.sequences.profile import Arrays, IntArray, measure

TOLERANCE = 0.03
"""Largest relative increase of added time that a search accepts on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceCandidate:
    """A sequence with its exact peak in bytes and its time in ns.

    `barred` sequences take too long, or save what must not be saved.
    """

    steps: IntArray
    boundary: int
    peak: int
    time: int
    barred: bool

    @staticmethod
    def of(g: Arrays, steps: IntArray, boundary: int, limit_ns: int) -> SequenceCandidate:
        """The candidate of a sequence that may take `limit_ns`."""
        peak, time, forbidden = measure(g, steps, boundary)
        return SequenceCandidate(steps, int(boundary), int(peak), int(time), bool(forbidden or time > limit_ns))

    def follows(self, old: SequenceCandidate, budget: int, once: int, draw: random.Random) -> bool:
        """Whether a search may go on from here instead of `old`: it fits, and is not slower, or little, by chance.

        `once` is the time of executing every operator once.
        """
        # The fourth power keeps nearly all draws close to 0: most steps tolerate next to nothing, a few the whole.
        slack = 1.0 + draw.random() ** 4 * TOLERANCE
        return not self.barred and self.peak <= budget and self.time - once <= (old.time - once) * slack

    def plan(self) -> Plan:
        """The sequence as a plan."""
        return Plan(tuple(map(OpId, self.steps.tolist())), self.boundary)
