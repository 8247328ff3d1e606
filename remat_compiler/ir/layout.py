"""The layout of storages in one arena: the problem that a layout planner solves, and its solution.

offset │   ┌───────────┐           A block takes its bytes from `offset` on in the moments `start` to `stop`
       │ ┌─┴──┐   ┌────┴─┐         (half-open); no two blocks that share a moment may share a byte.
       └─────────────────────►     The arena is as large as the highest byte.
                    moment
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

ALIGNMENT_BYTES = 64
"""Offsets are multiples of this unless a device needs more: a cache line."""


@dataclass(frozen=True, slots=True)
class Block:
    """One storage in one life.

    Attributes:
        start: Moment at which it is allocated.
        stop: First moment at which it is gone, after `start`.
        size_bytes: Its bytes, at least 0.
    """

    start: int
    stop: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """Place all blocks in as small an arena as possible.

    Attributes:
        blocks: The blocks to place.
        alignment_bytes: Every offset is a multiple of it; at least 1.
    """

    blocks: tuple[Block, ...]
    alignment_bytes: int = ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """A place for each block.

    Attributes:
        planner: Name of the layout planner.
        offsets: Offset of each block in bytes, in the order of the problem.
        total_bytes: Size of the arena.
    """

    planner: str
    offsets: tuple[int, ...]
    total_bytes: int


@runtime_checkable
class LayoutPlanner(Protocol):
    """One way to answer a `LayoutProblem`.

    Like a `Planner`, it is a frozen dataclass whose fields are its options, each with a default, it is pure and
    deterministic, and its layout has no defects by `simulate.verify_layout.layout_defects`.
    """

    name: ClassVar[str]
    """Its name in options and reports."""

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`; every problem has an answer."""
        ...
