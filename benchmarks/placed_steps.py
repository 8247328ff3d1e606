"""Emitted steps with the arenas that the backend would choose for them, and what is reserved for both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from emitted_steps import PLACEABLE, EmittedStep, live
from fragmentation_tables import Reserved
from layout_problems import DEVICE_ALIGNMENT
from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import Block
from remat_compiler.simulate.arenas import arena_defects, arena_lives
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import figures_of_steps
from remat_compiler.units import rounded_up
from remat_passes.layout.grouping import joined

DECIDING_STEPS = 3
"""Steps by which the backend decides whether a step has arenas."""


def arenas_of(allocations: Allocations) -> Arenas:
    """The arenas that the backend would choose."""
    arenas = joined(allocations)
    defects = arena_defects(allocations, arenas)
    if defects:
        raise SystemExit(f"arenas with defects: {defects[0]}")
    return arenas


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """An emitted step, and its arenas.

    Attributes:
        step: The step.
        arenas: Its arenas.
        planned: What it allocates with them, in the order in which it is made.
    """

    step: EmittedStep
    arenas: Arenas
    planned: tuple[Life, ...]

    @staticmethod
    def of(step: EmittedStep) -> PlacedStep:
        """The step with the arenas that the backend would choose."""
        arenas = arenas_of(step.allocations)
        covered = {n for n, arena in zip(step.placeable, arenas.arena_of) if arena >= 0}
        lives = [life for n, life in enumerate(step.lives) if n not in covered]
        for arena in range(len(arenas.sizes)):
            lives += arena_lives(step.allocations, arenas, arena)
        return PlacedStep(step, arenas, tuple(sorted(lives, key=lambda life: life.made)))

    def reserved(self, steps: int, scale: int, *, optimizer: bool = True) -> tuple[Reserved, Reserved]:
        """What is reserved for so many steps without and with arenas, on top of what is resident and of the state."""
        resident = [scale * size for size in self.step.resident]
        state = [scale * size for size in self.step.state] if optimizer else []
        both = (
            figures_of_steps(resident, state, [scaled(one, scale)] * steps) for one in (self.step.lives, self.planned)
        )
        plain, planned = (Reserved(one.reserved_bytes, one.expandable_bytes) for one in both)
        return plain, planned

    def used(self, scale: int) -> tuple[bool, bool]:
        """Whether the backend would keep the arenas, with plain segments and with those that expand."""
        plain, planned = self.reserved(DECIDING_STEPS, scale)
        some = bool(self.arenas.sizes)
        return some and planned.segments <= plain.segments, some and planned.expandable <= plain.expandable

    @property
    def covered_percent(self) -> float:
        """Part of all bytes that the step allocates which lies in arenas."""
        blocks = self.step.allocations.blocks
        covered = sum(block.size_bytes for block, arena in zip(blocks, self.arenas.arena_of) if arena >= 0)
        return 100 * covered / max(sum(life.size_bytes for life in self.step.lives), 1)

    @property
    def arena_ratio(self) -> float:
        """Most bytes of arenas at once, over the most bytes alive at once of what lies in them; 1 without arenas."""
        step, moments = self.step.allocations, self.step.moments
        inside = [block for block, arena in zip(step.blocks, self.arenas.arena_of) if arena >= 0]
        lives = [life for n in range(len(self.arenas.sizes)) for life in arena_lives(step, self.arenas, n)]
        arenas = [Block(life.made, life.freed or moments, life.size_bytes) for life in lives]
        return max(live(arenas, moments), default=0) / max(live(inside, moments)) if inside else 1.0

    @property
    def packing_ratio(self) -> float:
        """The largest size of an arena over the most bytes alive at once in it."""
        step, moments = self.step.allocations, self.step.moments
        ratios = [1.0]
        for arena, size_bytes in enumerate(self.arenas.sizes):
            blocks = [step.blocks[i] for i in self.arenas.members(arena)]
            ratios.append(size_bytes / max(live(blocks, moments)))
        return max(ratios)

    def at_peak(self) -> dict[str, int]:
        """Bytes alive at the step's peak by what they are, largest first, with ``in arenas`` and ``alone`` apart."""
        covered = {n for n, arena in zip(self.step.placeable, self.arenas.arena_of) if arena >= 0}
        found: Counter[str] = Counter()
        moment = self.step.peak_moment
        for n, (life, kind) in enumerate(zip(self.step.lives, self.step.kinds)):
            if life.made <= moment and (life.freed is None or moment < life.freed):
                inside = "in arenas" if n in covered else "alone"
                found[inside if kind == PLACEABLE else kind] += life.size_bytes
        return dict(found.most_common())


def scaled(lives: Sequence[Life], scale: int) -> list[Life]:
    """The same lives of larger values."""
    return [replace(life, size_bytes=scale * life.size_bytes) for life in lives]


def alive_bytes(lives: Sequence[Life], scale: int) -> int:
    """Most bytes alive at once, each allocation in whole units of the device."""
    if not lives:
        return 0
    end = 1 + max(max(life.made, life.freed or 0) for life in lives)
    blocks = [
        Block(
            life.made, end if life.freed is None else life.freed, rounded_up(scale * life.size_bytes, DEVICE_ALIGNMENT)
        )
        for life in lives
    ]
    return max(live(blocks, end))
