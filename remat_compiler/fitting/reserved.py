"""What torch's caching allocator reserves for a step on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remat_compiler.devices.caching_allocator import CachingAllocator, OutOfMemory
from remat_compiler.dry_run.storage_tracker import StorageLife

_UNLIMITED_BYTES = 2**62


def reserved_bytes(
    resident: Iterable[int], state: Iterable[int], lives: Iterable[StorageLife], capacity_bytes: int
) -> int:
    """Most that the caching allocator reserves over three steps; the optimizer has its state from the first one on.

    An allocator whose device is full gives back what nobody uses before it gives up.  If it gives up all the same, the
    answer is what it would reserve of a device without end, which is more than `capacity_bytes`.

    Args:
        resident: Sizes of what is there before the first step.
        state: Sizes of the optimizer's state.
        lives: Storages of one step.
        capacity_bytes: What the device has for the allocator.
    """
    first, later, known = list(resident), list(state), list(lives)
    try:
        return _peak_reserved_bytes(first, later, known, capacity_bytes)
    except OutOfMemory:
        return max(_peak_reserved_bytes(first, later, known, _UNLIMITED_BYTES), capacity_bytes + 1)


def _peak_reserved_bytes(
    resident: Sequence[int], state: Sequence[int], known: Sequence[StorageLife], capacity_bytes: int
) -> int:
    """The same for one capacity; raises `OutOfMemory`."""
    allocator = CachingAllocator(capacity_bytes)
    for size in resident:
        allocator.allocate(size)
    # What is freed at a moment is freed before what is made at it.
    events = sorted(
        [(life.made, 1, n) for n, life in enumerate(known)]
        + [(life.freed, 0, n) for n, life in enumerate(known) if life.freed is not None]
    )
    for number in range(3):
        blocks = {}
        for _, is_made, n in events:
            if is_made:
                blocks[n] = allocator.allocate(known[n].size_bytes)
            else:
                allocator.free(blocks.pop(n))
        if number == 0:
            for size in state:
                allocator.allocate(size)
        for block in blocks.values():
            allocator.free(block)
    return allocator.peak_reserved_bytes
