"""A model of torch's caching allocator with ``expandable_segments:True``: segments grow, and give back single pages.

    pool              pages    one segment, whose addresses have no end
    up to 1 MiB       2 MiB    [in use | free | in use | no memory | in use | no memory ...
    above            20 MiB

Memory is mapped behind the first place where free and unmapped addresses in a row are enough, page by page, so that
requests of any size share what is free.  A full device gets back all pages that nobody uses a part of, not only whole
segments.  Source: ``find_expandable_block``, ``map_block`` and ``get_free_block`` in
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat_compiler.devices.blocks import Block, Pool
from remat_compiler.devices.caching_allocator import LARGE_SEGMENT, SMALL_SEGMENT, CachingAllocator
from remat_compiler.units import rounded_up

_ADDRESSES = LARGE_SEGMENT * 2**40
"""Addresses of a segment, whole pages; torch makes another where 9/8 of the device's memory are not enough."""


@dataclass(slots=True, eq=False)
class ExpandableAllocator(CachingAllocator):
    """As `CachingAllocator`, which see."""

    _first_small: Block | None = None
    _first_large: Block | None = None

    def _best(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block, one that can grow by as much as it can."""
        found: Block | None = None
        for block in pool.at_least(size):
            if found is not None and _with_growth(block) >= _with_growth(found):
                break
            found = block
        return found

    def _worth_cutting(self, block: Block, rest: int) -> bool:
        return rest > 0

    def _more(self, pool: Pool, size: int) -> Block:
        """The first place with enough addresses, with memory behind them."""
        page = SMALL_SEGMENT if pool is self._small else LARGE_SEGMENT
        missing = _missing(self._place(pool, size), size, page)
        if self.reserved_bytes + missing > self.capacity_bytes:
            self._give_back()
        place = self._place(pool, size)
        self._reserve(_missing(place, size, page), size)
        while not place.is_mapped or place.size_bytes < size:
            place = self._mapped(pool, place, size, page)
        pool.remove(place)
        return place

    def _mapped(self, pool: Pool, place: Block, size: int, page: int) -> Block:
        """Map what is still missing of the first addresses at `place` that have no memory."""
        unmapped = place if not place.is_mapped else place.after
        assert unmapped is not None
        wanted = rounded_up(size - (place.size_bytes if place.is_mapped else 0), page)
        if wanted < unmapped.size_bytes:
            unmapped.cut(wanted)
        unmapped.is_mapped = True
        return self._put_back(pool, unmapped)

    def _place(self, pool: Pool, size: int) -> Block:
        """The first free block with enough addresses, some of them unmapped, from it on."""
        for block in _chain(self._first(pool)):
            if block.is_mapped:
                continue
            before = block.before
            start = before if before is not None and before.is_free else block
            if _addresses(start, size) >= size:
                return start
        raise AssertionError("the last block of a segment has no end")

    def _first(self, pool: Pool) -> Block:
        """The first block of the pool's segment."""
        small = pool is self._small
        first = self._first_small if small else self._first_large
        if first is None:
            first = Block(_ADDRESSES, 0 if small else _ADDRESSES, small, is_free=True, is_mapped=False)
            if small:
                self._first_small = first
            else:
                self._first_large = first
        return first

    def _give_back(self) -> None:
        """Return all pages that are free as a whole to the device."""
        for pool, page in ((self._small, SMALL_SEGMENT), (self._large, LARGE_SEGMENT)):
            for block in list(pool.blocks.values()):
                start = rounded_up(block.address, page)
                end = (block.address + block.size_bytes) // page * page
                if start < end:
                    self._unmap(pool, block, start, end)

    def _unmap(self, pool: Pool, block: Block, start: int, end: int) -> None:
        """Take the memory between two addresses away from a free block."""
        pool.remove(block)
        if start > block.address:
            rest = block.cut(start - block.address)
            pool.add(block)
            block = rest
        if end < block.address + block.size_bytes:
            pool.add(block.cut(end - block.address))
        block.is_mapped = False
        self.reserved_bytes -= block.size_bytes
        if block.after is not None and not block.after.is_mapped:
            block.join()
        if block.before is not None and not block.before.is_mapped:
            block.before.join()


def _with_growth(block: Block) -> int:
    """What a free block comes to if the addresses behind it get memory."""
    after = block.after
    return block.size_bytes + (after.size_bytes if after is not None and not after.is_mapped else 0)


def _chain(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.after


def _addresses(start: Block, size: int) -> int:
    """Free addresses in a row from `start` on, counted up to `size`."""
    found = 0
    for block in _chain(start):
        if not block.is_free or found >= size:
            break
        found += block.size_bytes
    return found


def _missing(start: Block, size: int, page: int) -> int:
    """Memory that a block of `size` at `start` takes from the device."""
    missing = 0
    for block in _chain(start):
        if size <= 0:
            break
        if not block.is_mapped:
            missing += min(rounded_up(size, page), block.size_bytes)
        size -= block.size_bytes
    return missing
