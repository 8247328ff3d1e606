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

from dataclasses import dataclass, field

from remat_compiler.devices.blocks import Block, Pool
from remat_compiler.units import rounded_up

_STEP = 512
SMALL_REQUEST = 2**20
SMALL_SEGMENT = 2 * 2**20
_LARGE_REQUEST = 10 * 2**20
LARGE_SEGMENT = 20 * 2**20
_SEGMENT_STEP = 2 * 2**20


class OutOfMemory(Exception):
    """A request that the device cannot serve; the message has its size and what is reserved."""


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
    _small: Pool = field(default_factory=Pool)
    _large: Pool = field(default_factory=Pool)
    _next_address: int = 0

    def allocate(self, size_bytes: int) -> Block:
        """A block for `size_bytes`.

        Raises:
            OutOfMemory: The device has no room for the segment that it takes.
        """
        size = max(rounded_up(size_bytes, _STEP), _STEP)
        pool = self._small if size <= SMALL_REQUEST else self._large
        block = self._best(pool, size)
        if block is None:
            block = self._more(pool, size)
        else:
            pool.remove(block)
        block.is_free = False
        if self._worth_cutting(block, block.size_bytes - size):
            rest = block.cut(size)
            rest.is_free = True
            pool.add(rest)
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take `block` back; it joins its free neighbours."""
        self.allocated_bytes -= block.size_bytes
        self._put_back(self._small if block.is_small else self._large, block)

    def _put_back(self, pool: Pool, block: Block) -> Block:
        """Add a block to those that are free; what it became with its free neighbours."""
        block.is_free = True
        if block.after is not None and block.after.is_free and block.after.is_mapped:
            pool.remove(block.after)
            block.join()
        if block.before is not None and block.before.is_free and block.before.is_mapped:
            block = block.before
            pool.remove(block)
            block.join()
        pool.add(block)
        return block

    def _best(self, pool: Pool, size: int) -> Block | None:
        """The free block that serves a request, if there is one."""
        return next(pool.at_least(size), None)

    def _worth_cutting(self, block: Block, rest: int) -> bool:
        """Whether what is left of a block becomes a block of its own."""
        return rest >= _STEP if block.is_small else rest > SMALL_REQUEST

    def _more(self, pool: Pool, size: int) -> Block:
        """A block of a new segment."""
        small = pool is self._small
        by_steps = LARGE_SEGMENT if size < _LARGE_REQUEST else rounded_up(size, _SEGMENT_STEP)
        wanted = SMALL_SEGMENT if small else by_steps
        if self.reserved_bytes + wanted > self.capacity_bytes:
            self._give_back()
        self._reserve(wanted, size)
        block = Block(wanted, self._next_address, small)
        # A gap, so that blocks of different segments are never neighbours.
        self._next_address += wanted + _SEGMENT_STEP
        return block

    def _reserve(self, wanted: int, size: int) -> None:
        """Count memory that the device gives for a request of `size`.

        Raises:
            OutOfMemory: It has not so much.
        """
        if self.reserved_bytes + wanted > self.capacity_bytes:
            raise OutOfMemory(
                f"a request of {size} bytes with {self.allocated_bytes} in use and {self.reserved_bytes} reserved of "
                f"{self.capacity_bytes}"
            )
        self.reserved_bytes += wanted
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _give_back(self) -> None:
        """Return segments that are free as a whole to the device."""
        for pool in (self._small, self._large):
            for block in [block for block in pool.blocks.values() if block.before is None and block.after is None]:
                pool.remove(block)
                self.reserved_bytes -= block.size_bytes
