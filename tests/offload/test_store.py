"""Room in a store: reserved, given out beyond that within the budget, and given back."""

from __future__ import annotations

import gc

import pytest

from remat_compiler.errors import OffloadError
from remat_compiler.ir.plan import PAGE_BYTES
from remat_compiler.offload.memory import HostMemory
from remat_compiler.offload.store import Store


def store() -> Store:
    return Store(lambda size_bytes: HostMemory(size_bytes, pinned=False))


def test_what_is_reserved_is_held_until_the_reservation_goes() -> None:
    room = store()
    first, second = room.reserve(3 * PAGE_BYTES, 1 << 20), room.reserve(PAGE_BYTES, 1 << 20)
    assert (room.held_bytes, room.taken_bytes) == (4 * PAGE_BYTES, 0)
    slots = [room.take(PAGE_BYTES) for _ in range(4)]
    assert (room.held_bytes, room.taken_bytes) == (4 * PAGE_BYTES, 4 * PAGE_BYTES)
    del first, second
    assert room.held_bytes == 4 * PAGE_BYTES  # in use
    slots.clear()
    gc.collect()
    assert (room.held_bytes, room.taken_bytes) == (0, 0)


def test_steps_at_the_same_time_take_more_up_to_the_limit() -> None:
    room = store()
    kept = room.reserve(PAGE_BYTES, 2 * PAGE_BYTES)
    slots = [room.take(100), room.take(100)]
    assert room.held_bytes == 2 * PAGE_BYTES
    with pytest.raises(OffloadError, match=r"would exceed offload_budget=8.0 KiB; raise it"):
        room.take(1)
    slots.clear()
    # The second piece was for the moment only.
    assert (room.held_bytes, kept.size_bytes) == (PAGE_BYTES, PAGE_BYTES)
    assert room.take(1).size_bytes == 1


def test_a_room_that_grows_is_in_one_piece_and_one_that_shrinks_gives_back() -> None:
    room = store()
    kept = room.reserve(2 * PAGE_BYTES, 2 * PAGE_BYTES)
    room.resize(kept, 5 * PAGE_BYTES, 5 * PAGE_BYTES)
    assert (kept.size_bytes, kept.limit_bytes, room.held_bytes) == (5 * PAGE_BYTES, 5 * PAGE_BYTES, 5 * PAGE_BYTES)
    slot = room.take(5 * PAGE_BYTES)
    assert room.held_bytes == 5 * PAGE_BYTES
    del slot
    other = room.reserve(4 * PAGE_BYTES, 4 * PAGE_BYTES)
    room.resize(kept, PAGE_BYTES, PAGE_BYTES)
    # The piece that serves both stays.
    assert room.held_bytes == 5 * PAGE_BYTES
    del kept, other
    gc.collect()
    assert room.held_bytes == 0


def test_a_room_that_cannot_grow_is_as_before() -> None:
    left = [3]

    def some(size_bytes: int) -> HostMemory:
        left[0] -= size_bytes // PAGE_BYTES
        if left[0] < 0:
            left[0] += size_bytes // PAGE_BYTES
            raise OffloadError("no memory")
        return HostMemory(size_bytes, pinned=False)

    room = Store(some)
    kept = room.reserve(2 * PAGE_BYTES, 2 * PAGE_BYTES)
    with pytest.raises(OffloadError, match="no memory"):
        room.resize(kept, 4 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert (kept.size_bytes, kept.limit_bytes, room.held_bytes) == (2 * PAGE_BYTES, 2 * PAGE_BYTES, 2 * PAGE_BYTES)
    # What is missing is enough where there is no more.
    room.resize(kept, 3 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert room.held_bytes == 3 * PAGE_BYTES


def test_memory_that_cannot_be_had_is_not_reserved() -> None:
    def none(size_bytes: int) -> HostMemory:
        raise OffloadError("no memory")

    room = Store(none)
    with pytest.raises(OffloadError, match="no memory"):
        room.reserve(PAGE_BYTES, PAGE_BYTES)
    room.make = lambda size_bytes: HostMemory(size_bytes, pinned=False)
    assert room.reserve(2 * PAGE_BYTES, 2 * PAGE_BYTES).size_bytes == room.held_bytes == 2 * PAGE_BYTES


def test_room_that_the_garbage_collector_returns_while_the_lock_is_held_is_returned_afterwards() -> None:
    room = store()
    slot = room.take(PAGE_BYTES)
    with room._changing():
        del slot
        assert room._taken() == PAGE_BYTES
    assert (room.held_bytes, room.taken_bytes) == (0, 0)
