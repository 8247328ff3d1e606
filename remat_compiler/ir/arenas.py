"""Allocations of an emitted step that may share memory, and the arenas that they share.

An *arena* is one tensor, at whose planned offsets several values lie.  It lives as long as anything in it, so an arena
for a whole step would keep its full size while gradients, which stay outside, grow.  A step has several arenas, and
each ends with the values that the backward needs no more:

    bytes │  ┌──────────────────────────┐
          │  │     ┌────────────────┐   │
          │  │     │    ┌───────┐   │   │
          └──┴─────┴────┴───────┴───┴───┴──────►
                 forward │ backward      moment
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.layout import Block


@dataclass(frozen=True, slots=True)
class Allocations:
    """What may lie in arenas, and the bytes of all else.

    Attributes:
        blocks: Lives and sizes, each of which ends within the step; sizes are multiples of `alignment_bytes`.
        other_bytes: At each moment of the step, the bytes of everything else.
        boundary: First moment of the backward.
        alignment_bytes: Every offset is a multiple of it.
        in_trace: Position of each block among the lives of the step's trace, see `simulate.reserved.AllocationTrace`.
    """

    blocks: tuple[Block, ...]
    other_bytes: tuple[int, ...]
    boundary: int
    alignment_bytes: int
    in_trace: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arenas:
    """The arenas of a step.

    Attributes:
        sizes: Bytes of each arena.
        arena_of: Number of the arena of each block, in the order of `Allocations.blocks`; -1 for a block by itself.
        offsets: Offset of each block in its arena; 0 for a block by itself.
    """

    sizes: tuple[int, ...]
    arena_of: tuple[int, ...]
    offsets: tuple[int, ...]

    def members(self, arena: int) -> list[int]:
        """The blocks that share `arena`."""
        return [i for i, number in enumerate(self.arena_of) if number == arena]


@dataclass(frozen=True, slots=True)
class ArenaFigures:
    """What arenas do for a step.

    Attributes:
        sizes: Bytes of each.
        covered_percent: Part of all bytes that the step allocates which lies in them.
        plain_reserved_bytes: What torch's caching allocator would reserve for the step without them, by its model.
    """

    sizes: tuple[int, ...]
    covered_percent: float
    plain_reserved_bytes: int
