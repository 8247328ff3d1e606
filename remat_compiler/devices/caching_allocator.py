"""A model of torch's caching allocator for CUDA, one stream, default settings: what it reserves for what is asked.

    asked         rounded to   taken from segments of          a block is split if it leaves
    up to 1 MiB   512 bytes    2 MiB                           512 bytes
    below 10 MiB  512 bytes    20 MiB                          more than 1 MiB
    above         512 bytes    its own size, in steps of 2 MiB more than 1 MiB

The smallest free block that is large enough serves a request, the one at the lowest address of equals; free neighbours
join.  If the device is full, free segments are given back to it, and the request is tried once more.  Source:
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from remat_compiler.units import rounded_up

_STEP = 512
_SMALL_REQUEST = 2**20
_SMALL_SEGMENT = 2 * 2**20
_LARGE_REQUEST = 10 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_SEGMENT_STEP = 2 * 2**20
_Entry = tuple[int, int]
"""Bytes and address of a free block: its place in the order in which free blocks are looked at."""


class OutOfMemory(Exception):
    """A request that the device cannot serve; the message has its size and what is reserved."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, with the parts beside it."""

    size_bytes: int
    address: int
    is_small: bool
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def entry(self) -> _Entry:
        """Its place among free blocks."""
        return self.size_bytes, self.address


@dataclass(slots=True, eq=False)
class _Pool:
    """Free blocks, the smallest first."""

    order: list[_Entry] = field(default_factory=list)
    blocks: dict[_Entry, Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        bisect.insort(self.order, block.entry)
        self.blocks[block.entry] = block

    def remove(self, block: Block) -> None:
        self.order.pop(bisect.bisect_left(self.order, block.entry))
        del self.blocks[block.entry]

    def best(self, size_bytes: int) -> Block | None:
        """The smallest block of at least `size_bytes`."""
        place = bisect.bisect_left(self.order, (size_bytes, -1))
        return self.blocks[self.order[place]] if place < len(self.order) else None


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """The allocator's state.

    Attributes:
        capacity_bytes: Memory of the device that it may reserve.
        allocated_bytes: In use, rounded as the allocator rounds.
        reserved_bytes: In segments.
        peak_allocated_bytes: Most of `allocated_bytes` so far.
        peak_reserved_bytes: Most of `reserved_bytes` so far.
    """

    capacity_bytes: int
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    _small: _Pool = field(default_factory=_Pool)
    _large: _Pool = field(default_factory=_Pool)
    _next_address: int = 0

    def allocate(self, size_bytes: int) -> Block:
        """A block for `size_bytes`.

        Raises:
            OutOfMemory: The device has no room for the segment that it takes.
        """
        size = max(rounded_up(size_bytes, _STEP), _STEP)
        pool = self._small if size <= _SMALL_REQUEST else self._large
        block = pool.best(size)
        if block is None:
            block = self._segment(size)
        else:
            pool.remove(block)
        block.is_free = False
        self._split(block, size, pool)
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take `block` back; it joins its free neighbours."""
        self.allocated_bytes -= block.size_bytes
        pool = self._small if block.is_small else self._large
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                pool.remove(other)
                first, second = (other, block) if other is block.before else (block, other)
                first.size_bytes += second.size_bytes
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        block.is_free = True
        pool.add(block)

    def _split(self, block: Block, size: int, pool: _Pool) -> None:
        """Leave `size` of `block`, and the rest free, if the rest is worth it."""
        rest = block.size_bytes - size
        if not (rest >= _STEP if block.is_small else rest > _SMALL_REQUEST):
            return
        free = Block(rest, block.address + size, block.is_small, True, block, block.after)
        if block.after is not None:
            block.after.before = free
        block.after, block.size_bytes = free, size
        pool.add(free)

    def _segment(self, size: int) -> Block:
        """A new segment for a request of `size`."""
        small = size <= _SMALL_REQUEST
        by_steps = _LARGE_SEGMENT if size < _LARGE_REQUEST else rounded_up(size, _SEGMENT_STEP)
        wanted = _SMALL_SEGMENT if small else by_steps
        if self.reserved_bytes + wanted > self.capacity_bytes:
            self._give_back()
        if self.reserved_bytes + wanted > self.capacity_bytes:
            raise OutOfMemory(
                f"a request of {size} bytes with {self.allocated_bytes} in use and {self.reserved_bytes} reserved of "
                f"{self.capacity_bytes}"
            )
        block = Block(wanted, self._next_address, small)
        # A gap, so that blocks of different segments are never neighbours.
        self._next_address += wanted + _SEGMENT_STEP
        self.reserved_bytes += wanted
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _give_back(self) -> None:
        """Return segments that are free as a whole to the device."""
        for pool in (self._small, self._large):
            for block in [block for block in pool.blocks.values() if block.before is None and block.after is None]:
                pool.remove(block)
                self.reserved_bytes -= block.size_bytes
