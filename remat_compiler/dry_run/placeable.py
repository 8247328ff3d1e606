"""Allocations of a step, run on fake tensors, that may lie in arenas, and the places where emitted graphs make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from remat_compiler.arena.placing import Placement, Slot
from remat_compiler.dry_run.storage_tracker import StorageLife, WrapperCall
from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import ALIGNMENT_BYTES, Block


class Sample(Protocol):
    """Memory at one moment; see `dry_run.MemorySample`."""

    @property
    def phase(self) -> str:
        """``forward`` or ``backward``."""

    @property
    def live_bytes(self) -> int:
        """Bytes alive."""

    @property
    def workspace_bytes(self) -> int:
        """What the operator takes inside."""


@dataclass(frozen=True, slots=True)
class PlaceableStep:
    """One forward and one backward graph, and what of their allocations may lie in arenas.

    Attributes:
        allocations: The blocks that may, and all else.
        made: For each graph (`True`: the backward), the block of each allocation in order; `None` for one that may not.
        saved: The block that each argument of the backward lies in; `None` for others.
        all_bytes: Sum of the bytes of all that the step allocates.
        devices: How many devices the allocations lie on.
    """

    allocations: Allocations
    made: tuple[tuple[bool, tuple[int | None, ...]], ...]
    saved: tuple[int | None, ...]
    all_bytes: int
    devices: int = 1

    def placements(self, arenas: Arenas) -> dict[bool, Placement]:
        """The places of each graph's allocations."""
        return {is_backward: self._placement(is_backward, made, arenas) for is_backward, made in self.made}

    def _placement(self, is_backward: bool, made: Sequence[int | None], arenas: Arenas) -> Placement:
        arena_of = [-1 if block is None else arenas.arena_of[block] for block in made]
        last = {arena: k for k, arena in enumerate(arena_of)}
        blocks = self.allocations.blocks
        slots = tuple(
            None
            if block is None or arena < 0
            else Slot(arena, arenas.offsets[block], blocks[block].size_bytes, last[arena] == k)
            for k, (block, arena) in enumerate(zip(made, arena_of))
        )
        sources: dict[int, int] = {}
        for position, block in enumerate(self.saved if is_backward else ()):
            arena = -1 if block is None else arenas.arena_of[block]
            # The backward needs to find only arenas that it allocates in.
            if arena in last and arena >= 0:
                sources.setdefault(arena, position)
        return Placement(arenas.sizes, slots, tuple(sorted(sources.items())))


def placeable(
    calls: Sequence[WrapperCall],
    outputs: Sequence[StorageLife | None],
    lives: Sequence[tuple[StorageLife, int | None]],
    timeline: Sequence[Sample],
    positions: Mapping[int, int],
) -> PlaceableStep | None:
    """The allocations that may lie in arenas: those that a step's graphs make, and nothing outside of them holds.

    Outputs and gradients are the caller's, and live as long as the caller likes.

    Args:
        calls: Calls of the emitted wrappers.
        outputs: The storages of what the step returns.
        lives: All storages, each with the moment at which it was freed within the step, if it was.
        timeline: Memory at each moment.
        positions: The position of each storage in the trace of the step, by the identity of its life.
    """
    if sorted(call.is_backward for call in calls) != [False, True]:
        return None
    backward = next(call for call in calls if call.is_backward)
    shown = {id(life) for life in (*outputs, *backward.returned) if life is not None}
    ends = {id(life): freed for life, freed in lives}
    number: dict[int, int] = {}
    blocks: list[Block] = []
    in_trace: list[int] = []
    for call in calls:
        for life in call.made:
            # Whole multiples: rounding would make a step that is full take more.
            whole = life.size_bytes and life.size_bytes % ALIGNMENT_BYTES == 0
            end = ends.get(id(life))
            if whole and end is not None and id(life) not in shown:
                number[id(life)] = len(blocks)
                blocks.append(Block(life.made, end, life.size_bytes))
                in_trace.append(positions[id(life)])
    change = [0] * (len(timeline) + 1)
    for block in blocks:
        change[block.start] -= block.size_bytes
        change[block.stop] += block.size_bytes
    # Every dry run comes by here: by each block's begin and end, not by the moments between.
    other = [one.live_bytes + one.workspace_bytes + covered for one, covered in zip(timeline, accumulate(change))]
    boundary = sum(sample.phase == "forward" for sample in timeline)
    allocations = Allocations(tuple(blocks), tuple(other), boundary, ALIGNMENT_BYTES, tuple(in_trace))
    made = tuple((call.is_backward, tuple(number.get(id(life)) for life in call.made)) for call in calls)
    saved = tuple(None if life is None else number.get(id(life)) for life in backward.arguments)
    devices = {device for call in calls for device in call.devices}
    return PlaceableStep(allocations, made, saved, sum(life.size_bytes for life, _ in lives), len(devices))
