"""The model of torch's caching allocator: what it promises of any order of requests, and cases known by hand."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.devices.blocks import Block
from remat_compiler.devices.caching_allocator import CachingAllocator, OutOfMemory
from remat_compiler.devices.expandable_segments import ExpandableAllocator

MIB = 2**20
ENDLESS = 2**62
requests = st.lists(
    st.tuples(st.integers(0, 40 * MIB) | st.integers(0, 3_000), st.integers(0, 9)), min_size=1, max_size=60
)


either = pytest.mark.parametrize("kind", [CachingAllocator, ExpandableAllocator])


def run(allocator: CachingAllocator, asked: list[tuple[int, int]]) -> list[tuple[int, Block]]:
    """Allocate each size, and free an older block after some; what is in use in the end."""
    alive: list[tuple[int, Block]] = []
    for size, choice in asked:
        alive.append((size, allocator.allocate(size)))
        if choice < len(alive):
            allocator.free(alive.pop(choice)[1])
    return alive


@either
@given(asked=requests)
def test_blocks_are_large_enough_and_apart(kind: type[CachingAllocator], asked: list[tuple[int, int]]) -> None:
    allocator = kind(ENDLESS)
    alive = run(allocator, asked)
    assert all(block.size_bytes >= max(size, 512) and not block.is_free for size, block in alive)
    places = sorted((block.address, block.address + block.size_bytes) for _, block in alive)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert allocator.allocated_bytes == sum(block.size_bytes for _, block in alive)
    assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes


@either
@given(asked=requests)
def test_all_that_is_freed_can_be_had_again(kind: type[CachingAllocator], asked: list[tuple[int, int]]) -> None:
    """Free neighbours join, so the same requests in the same order need no new segment."""
    allocator = kind(ENDLESS)
    for _, block in run(allocator, asked):
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    reserved = allocator.reserved_bytes
    for _, block in run(allocator, asked):
        allocator.free(block)
    assert allocator.reserved_bytes == reserved


@either
@given(asked=requests, capacity=st.integers(1, 200 * MIB))
def test_a_full_device_is_never_exceeded(
    kind: type[CachingAllocator], asked: list[tuple[int, int]], capacity: int
) -> None:
    allocator = kind(capacity)
    with suppress(OutOfMemory):
        run(allocator, asked)
    assert allocator.peak_reserved_bytes <= capacity


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        ([1], 512, 2 * MIB),
        ([MIB], MIB, 2 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        # What is left of a small segment is served from; of a large one, too, while more than 1 MiB is left.
        ([512] * 4096, 2 * MIB, 2 * MIB),
        ([9 * MIB, 9 * MIB], 18 * MIB, 20 * MIB),
        # Less than 1 MiB is not split off, and counts as in use.
        ([11 * MIB + 1], 12 * MIB, 12 * MIB),
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),
        ([11 * MIB, 11 * MIB], 24 * MIB, 24 * MIB),
    ],
)
def test_known_requests(asked: list[int], allocated: int, reserved: int) -> None:
    allocator = CachingAllocator(ENDLESS)
    for size in asked:
        allocator.allocate(size)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    allocator = CachingAllocator(ENDLESS)
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    addresses = large.address, small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(30 * MIB).address == addresses[1]
    assert allocator.allocate(30 * MIB).address == addresses[0]


def test_free_segments_go_back_before_a_device_is_full() -> None:
    allocator = CachingAllocator(100 * MIB)
    blocks = [allocator.allocate(40 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.free(block)
    # 80 MiB are cached, and no segment of them is large enough.
    allocator.allocate(60 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (60 * MIB, 80 * MIB)
    with pytest.raises(OutOfMemory, match=r"request of .* in use and .* reserved of"):
        allocator.allocate(60 * MIB)


@given(requests)
def test_expandable_segments_take_the_pages_that_are_in_use(asked: list[tuple[int, int]]) -> None:
    """Of a device that is full, no page without a part in use is kept; of one that is not, none is given back."""
    allocator = ExpandableAllocator(ENDLESS)
    alive = run(allocator, asked)
    assert allocator.reserved_bytes == allocator.peak_reserved_bytes
    allocator.capacity_bytes = allocator.reserved_bytes
    with pytest.raises(OutOfMemory):
        allocator.allocate(allocator.capacity_bytes + 1)
    pages = set()
    for _, block in alive:
        page = (2 if block.is_small else 20) * MIB
        pages |= {
            (block.is_small, n) for n in range(block.address // page, -(-(block.address + block.size_bytes) // page))
        }
    assert allocator.reserved_bytes == sum((2 if is_small else 20) * MIB for is_small, _ in pages)


def test_expandable_segments_serve_where_others_are_in_pieces() -> None:
    """The optimizer's state lands in the memory of the first step's logits, which then have no room in one piece."""

    def reserved(allocator: CachingAllocator) -> int:
        logits = allocator.allocate(600 * MIB)
        allocator.free(logits)
        allocator.allocate(200 * MIB)
        allocator.allocate(600 * MIB)
        return allocator.reserved_bytes

    assert reserved(ExpandableAllocator(1000 * MIB)) == 800 * MIB
    assert reserved(CachingAllocator(ENDLESS)) == 1200 * MIB
    with pytest.raises(OutOfMemory):
        reserved(CachingAllocator(1000 * MIB))


def test_an_expandable_block_grows_where_it_is() -> None:
    allocator = ExpandableAllocator(ENDLESS)
    first = allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    second = allocator.allocate(30 * MIB)
    assert (second.address - first.address, allocator.reserved_bytes) == (30 * MIB, 60 * MIB)
    allocator.free(first)
    # The free 30 MiB in front are too small, and nothing behind them has addresses to spare.
    third = allocator.allocate(40 * MIB)
    assert (third.address - first.address, allocator.reserved_bytes) == (60 * MIB, 100 * MIB)
