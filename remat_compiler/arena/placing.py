"""One call of an emitted graph, whose allocations lie in arenas as planned; the same on real and on fake tensors.

The k-th allocation of the call takes the k-th slot.  An allocation that is larger than its slot, or has none, is made
as without arenas.  The call holds an arena from its first allocation there to its last; from then on the values in it
do, among them those that are saved, by which the backward finds the arena of its forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

MakeArena = Callable[[int], Tensor]
"""An empty tensor of so many bytes."""
MakeView = Callable[[Tensor, Any, Any, int], Tensor]
"""A tensor of its own, no view to autograd, in the memory of another one: that, size, stride, offset in elements."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one allocation.

    Attributes:
        arena: Number of the arena.
        offset: Its first byte there.
        size_bytes: Its bytes.
        is_last: Whether the graph allocates nothing in the arena afterwards.
    """

    arena: int
    offset: int
    size_bytes: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of the allocations of one graph.

    Attributes:
        sizes: Bytes of each arena of the step.
        slots: For each allocation, in order; `None` for one by itself.
        sources: Arenas that exist already when the graph begins, each with the position of an argument that lies in it.
    """

    sizes: tuple[int, ...]
    slots: tuple[Slot | None, ...]
    sources: tuple[tuple[int, int], ...] = ()

    def is_continued(self, arguments: Sequence[Any]) -> bool:
        """Whether the arenas that exist already are those of the arguments."""
        return all(_lies_in(arguments[position], self.sizes[arena]) for arena, position in self.sources)


class Places(Protocol):
    """Where the allocations of each call of a graph lie."""

    def of(self, arguments: Sequence[Any]) -> Placement | None:
        """The places for a call with these arguments; `None` for the allocator's own."""
        ...


@dataclass(frozen=True, slots=True)
class SamePlaces:
    """The same places for each call, at sizes that do not change.

    Attributes:
        placement: The places.
    """

    placement: Placement

    def of(self, arguments: Sequence[Any]) -> Placement:
        """See `Places`."""
        return self.placement


@dataclass(frozen=True, slots=True)
class PlacesBySize:
    """Places for all calls whose sizes are not beyond some largest ones.

    Attributes:
        positions: Positions of the sizes among the arguments.
        known: Largest sizes with the places for them, the latest ones first.
    """

    positions: tuple[int, ...]
    known: tuple[tuple[tuple[int, ...], Placement], ...]

    def of(self, arguments: Sequence[Any]) -> Placement | None:
        """See `Places`; a backward has the places with which its forward ran, though there may be later ones."""
        sizes = [arguments[position] for position in self.positions]
        fitting = [one for reach, one in self.known if all(size <= top for size, top in zip(sizes, reach))]
        found = next((one for one in fitting if one.is_continued(arguments)), None)
        # Hooks on saved tensors may have replaced what would tell; then any of them serves.
        return found if found is not None else next(iter(fitting), None)


class Placing:
    """The state of one call.

    Args:
        placement: The places.
        arguments: Arguments of the call.
        make_arena: Makes an arena.
        make_view: Makes a value in it.
    """

    def __init__(
        self, placement: Placement, arguments: Sequence[Any], make_arena: MakeArena, make_view: MakeView
    ) -> None:
        self._placement, self._make_arena, self._make_view = placement, make_arena, make_view
        self._next = 0
        self._arenas = {
            arena: _whole(arguments[position], placement.sizes[arena])
            for arena, position in placement.sources
            if _lies_in(arguments[position], placement.sizes[arena])
        }

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """The next allocation in its slot; `None` if it is to be made by itself."""
        number, self._next = self._next, self._next + 1
        slot = self._placement.slots[number] if number < len(self._placement.slots) else None
        if slot is None:
            return None
        arena = self._arenas.get(slot.arena)
        found = None
        if _extent(size, stride) * dtype.itemsize <= slot.size_bytes:
            if arena is None:
                arena = self._arenas[slot.arena] = self._make_arena(self._placement.sizes[slot.arena])
            found = self._make_view(arena.view(dtype), size, stride, slot.offset // dtype.itemsize)
        if slot.is_last:
            self._arenas.pop(slot.arena, None)
        return found


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one in memory."""
    extent = 1
    for length, step in zip(size, stride):
        if not length:
            return 0
        extent += (length - 1) * step
    return extent


def _lies_in(value: Any, size_bytes: int) -> bool:
    """Whether a saved value still lies in an arena: hooks on saved tensors may have replaced it by a copy."""
    return isinstance(value, Tensor) and value.untyped_storage().nbytes() == size_bytes


def _whole(value: Tensor, size_bytes: int) -> Tensor:
    """All bytes of the arena that `value` lies in."""
    return value.detach().as_strided((size_bytes // value.dtype.itemsize,), (1,), 0).view(torch.uint8)
