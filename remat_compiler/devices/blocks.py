"""Parts of a device's memory that an allocator hands out, and those of them that are free."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

_Entry = tuple[int, int]
"""Bytes and address of a free block: its place in the order in which free blocks are looked at."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, with the parts beside it.

    Attributes:
        size_bytes: Its size.
        address: Where it begins.
        is_small: Whether it belongs to the pool of small requests.
        is_free: Whether it can be had.
        is_mapped: Whether there is memory behind its addresses.
        before: The part that ends where it begins, if there is one.
        after: The part that begins where it ends.
    """

    size_bytes: int
    address: int
    is_small: bool
    is_free: bool = False
    is_mapped: bool = True
    before: Block | None = None
    after: Block | None = None

    def cut(self, size_bytes: int) -> Block:
        """Leave `size_bytes` of it; the rest, a block of its own in the same state."""
        rest = Block(
            self.size_bytes - size_bytes,
            self.address + size_bytes,
            self.is_small,
            self.is_free,
            self.is_mapped,
            self,
            self.after,
        )
        if self.after is not None:
            self.after.before = rest
        self.after, self.size_bytes = rest, size_bytes
        return rest

    def join(self) -> None:
        """Take in the block after it, which there must be."""
        other = self.after
        assert other is not None
        self.size_bytes += other.size_bytes
        self.after = other.after
        if other.after is not None:
            other.after.before = self

    @property
    def entry(self) -> _Entry:
        """Its place among free blocks."""
        return self.size_bytes, self.address


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks, the smallest first.

    Attributes:
        order: Their sizes and addresses, ascending.
        blocks: Each by its size and address.
    """

    order: list[_Entry] = field(default_factory=list)
    blocks: dict[_Entry, Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        """Count `block` among them."""
        bisect.insort(self.order, block.entry)
        self.blocks[block.entry] = block

    def remove(self, block: Block) -> None:
        """Take `block`, which is one of them, out."""
        self.order.pop(bisect.bisect_left(self.order, block.entry))
        del self.blocks[block.entry]

    def at_least(self, size_bytes: int) -> Iterator[Block]:
        """Those of at least `size_bytes`, the smallest first, the one at the lowest address of equals."""
        for place in range(bisect.bisect_left(self.order, (size_bytes, -1)), len(self.order)):
            yield self.blocks[self.order[place]]
