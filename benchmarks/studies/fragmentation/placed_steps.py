"""Emitted steps in arenas, and what torch's caching allocator reserves for them by its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from instruments.layout_problems import DEVICE_ALIGNMENT
from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import Block
from remat_compiler.simulate.arenas import arena_defects, arena_lives, trace_with
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace, figures_of_steps
from remat_compiler.units import rounded_up
from remat_passes.layout.grouping import joined
from remat_passes.registry import choose_arenas
from studies.fragmentation.emitted_steps import INSIDE, PLACEABLE, EmittedStep, live
from studies.fragmentation.fragmentation_tables import ArenasRow, Reserved


def arenas_throughout(step: EmittedStep) -> Arenas:
    """All arenas that leave the peak of a step as it is."""
    return _checked(step, joined(step.allocations))


def chosen_arenas(step: EmittedStep, smaller: Sequence[EmittedStep], expandable: bool) -> Arenas:
    """The arenas that the backend would choose.

    Args:
        step: The step; that of the largest sizes if they change.
        smaller: The same at some smaller sizes.
        expandable: Whether the allocator's segments expand.
    """
    traces = [step.trace, *(_as_foreseen(one, step) for one in smaller)]
    return _checked(step, choose_arenas(step.allocations, traces, expandable))


def _checked(step: EmittedStep, arenas: Arenas) -> Arenas:
    defects = arena_defects(step.allocations, arenas)
    if defects:
        raise SystemExit(f"arenas with defects: {defects[0]}")
    return arenas


def _as_foreseen(step: EmittedStep, largest: EmittedStep) -> AllocationTrace:
    """A step as the backend foresees it when it runs the largest sizes: it takes what operators hold from there."""
    lives = tuple(
        there if kind.startswith(INSIDE) else life
        for life, kind, there in zip(step.lives, step.kinds, largest.lives, strict=True)
    )
    return replace(largest.trace, lives=lives)


def reserved(resident: Sequence[int], state: Sequence[int], steps: Sequence[Sequence[Life]]) -> Reserved:
    """What is reserved for steps in a row, on top of what is resident and of the state."""
    figures = figures_of_steps(resident, state, steps)
    return Reserved(figures.reserved_bytes, figures.expandable_bytes)


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """An emitted step in arenas.

    Attributes:
        step: The step.
        arenas: Its arenas.
        largest: What of the step may lie in arenas, at the sizes for which these were planned.
    """

    step: EmittedStep
    arenas: Arenas
    largest: Allocations

    @staticmethod
    def of(step: EmittedStep, arenas: Arenas) -> PlacedStep:
        """A step in arenas that were planned for its own sizes."""
        return PlacedStep(step, arenas, step.allocations)

    @property
    def lives(self) -> tuple[Life, ...]:
        """What the step allocates, in order."""
        return trace_with(self.step.trace, self.largest, self.arenas).lives

    @property
    def figures(self) -> ArenasRow:
        """Its arenas as a table shows them."""
        return ArenasRow(
            len(self.arenas.sizes), self.covered_percent, self.arena_ratio, self.packing_ratio, self.at_peak()
        )

    @property
    def covered_percent(self) -> float:
        """Part of all bytes that the step allocates which lies in arenas."""
        covered = sum(self.step.lives[n].size_bytes for n in self._covered)
        return 100 * covered / max(sum(life.size_bytes for life in self.step.lives), 1)

    @property
    def arena_ratio(self) -> float:
        """Most bytes of arenas at once, over the most bytes alive at once of what lies in them; 1 without arenas."""
        step, moments = self.largest, self.step.moments
        inside = [block for block, arena in zip(step.blocks, self.arenas.arena_of) if arena >= 0]
        lives = [life for n in range(len(self.arenas.sizes)) for life in arena_lives(step, self.arenas, n)]
        arenas = [Block(life.made, life.freed or moments, life.size_bytes) for life in lives]
        return max(live(arenas, moments), default=0) / max(live(inside, moments)) if inside else 1.0

    @property
    def packing_ratio(self) -> float:
        """The largest size of an arena over the most bytes alive at once in it; 1 without arenas."""
        ratios = [1.0]
        for arena, size_bytes in enumerate(self.arenas.sizes):
            blocks = [self.largest.blocks[i] for i in self.arenas.members(arena)]
            ratios.append(size_bytes / max(live(blocks, self.step.moments)))
        return max(ratios)

    def at_peak(self) -> dict[str, int]:
        """Bytes alive at the step's peak by what they are, largest first, with ``in arenas`` and ``alone`` apart."""
        covered = self._covered
        found: Counter[str] = Counter()
        moment = self.step.peak_moment
        for n, (life, kind) in enumerate(zip(self.step.lives, self.step.kinds)):
            if life.made <= moment and (life.freed is None or moment < life.freed):
                inside = "in arenas" if n in covered else "alone"
                found[inside if kind == PLACEABLE else kind] += life.size_bytes
        return dict(found.most_common())

    @property
    def _covered(self) -> set[int]:
        """Numbers of the allocations that lie in arenas."""
        return {n for n, arena in zip(self.largest.in_trace, self.arenas.arena_of) if arena >= 0}


def alive_bytes(lives: Sequence[Life]) -> int:
    """Most bytes alive at once, each allocation in whole units of the device."""
    if not lives:
        return 0
    end = 1 + max(max(life.made, life.freed or 0) for life in lives)
    blocks = [
        Block(life.made, end if life.freed is None else life.freed, rounded_up(life.size_bytes, DEVICE_ALIGNMENT))
        for life in lives
    ]
    return max(live(blocks, end))
