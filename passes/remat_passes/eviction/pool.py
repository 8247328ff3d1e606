"""A memory pool, simulated: one contiguous piece of memory that is cut into chunks and merged again.

    address   0        512        2048     3072          8192
              | held   | free     | held   | free         |      before
              | held   | free     | held   | free  | new  |      1,536 bytes from the right end of the last chunk

Chunks stand in a doubly linked list by address; two neighbours are never both free.  A request gets the smallest free
chunk that is large enough (of equals the leftmost), and its left or its right end.  Sizes are multiples of the
granularity that callers round to (`rounded`).  Nothing of it depends on anything but the calls made.

Source: Zhang, Ma, Liu, Yuan, *Coop: Memory is not a Commodity*, NeurIPS 2023, section 2.1 for the allocator ("the
leftmost side of a free chunk with a size equal to or larger", freed chunks merged), sections 3.1 and 3.4 for the one
pool whose size is the budget and whose two ends are allocated from.  Which of several free chunks is taken is not
said there; best fit is what deep learning frameworks do.

Where we deviate: a pool grows at its right end if a request cannot be served at all (the paper's run ends there), so
that a run always comes to an end and tells how many bytes it would have needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import IntArray

START, BYTES, OWNER, BEFORE, AFTER = range(5)
"""Columns of `Pool.chunks`."""
FREE, HELD = -1, -2
"""Owners that are no storage: nobody, and something that can never be evicted."""
NONE = -1
"""No chunk."""
CAPACITY, FREE_BYTES, LAST, SPARE = range(4)
"""Entries of `Pool.counters`: bytes of the pool, free ones of them, its last chunk, and rows in `Pool.spare`."""


class Pool(NamedTuple):
    """The chunks of one pool.

    Attributes:
        chunks: A row a chunk, see the columns above; row 0 is always the leftmost one.  OWNER is a storage, or `FREE`,
            or `HELD`; BEFORE and AFTER are the rows of its neighbours, or `NONE`.
        spare: Rows that are no chunk, as a stack.
        counters: See the entries above.
    """

    chunks: IntArray
    spare: IntArray
    counters: IntArray


@inner
def rounded(size: int, granularity: int) -> int:
    """`size` in bytes rounded up to a multiple of `granularity`."""
    return (size + granularity - 1) // granularity * granularity


@inner
def new_pool(capacity: int, most_held: int) -> Pool:
    """An empty pool of `capacity` bytes, of which at most `most_held` chunks are held at once."""
    # Between held chunks, and at both ends, there is at most one free chunk each.
    rows = 2 * most_held + 2
    chunks = np.zeros((rows, 5), np.int64)
    chunks[0] = (0, capacity, FREE, NONE, NONE)
    # The stack is popped from its end, so that rows are used in ascending order.
    spare = np.arange(rows)[::-1].copy()
    counters = np.zeros(4, np.int64)
    counters[CAPACITY], counters[FREE_BYTES], counters[LAST], counters[SPARE] = capacity, capacity, 0, rows - 1
    return Pool(chunks, spare, counters)


@inner
def best_fit(pool: Pool, size: int) -> int:
    """The smallest free chunk of at least `size` bytes, of equals the leftmost; `NONE` if there is none."""
    best, row = NONE, 0
    while row != NONE:
        has = pool.chunks[row, BYTES]
        if pool.chunks[row, OWNER] == FREE and has >= size and (best == NONE or has < pool.chunks[best, BYTES]):
            best = row
        row = pool.chunks[row, AFTER]
    return best


@inner
def new_row_after(pool: Pool, row: int) -> int:
    """A row for a chunk to the right of `row`, linked and still empty."""
    pool.counters[SPARE] -= 1
    new = pool.spare[pool.counters[SPARE]]
    after = pool.chunks[row, AFTER]
    pool.chunks[new, BEFORE], pool.chunks[new, AFTER], pool.chunks[row, AFTER] = row, after, new
    if after == NONE:
        pool.counters[LAST] = new
    else:
        pool.chunks[after, BEFORE] = new
    return int(new)


@inner
def take(pool: Pool, row: int, size: int, owner: int, from_right: bool) -> int:
    """Hand out `size` bytes, at least 1, of the free chunk `row`, which has as many: the row of the held chunk."""
    rest = pool.chunks[row, BYTES] - size
    pool.counters[FREE_BYTES] -= size
    held = row
    if rest > 0:
        right = new_row_after(pool, row)
        # The row keeps the left part, whoever gets it, so that row 0 stays the leftmost.
        pool.chunks[row, BYTES] = rest if from_right else size
        pool.chunks[right, START] = pool.chunks[row, START] + pool.chunks[row, BYTES]
        pool.chunks[right, BYTES] = size if from_right else rest
        pool.chunks[right, OWNER] = FREE
        held = right if from_right else row
    pool.chunks[held, OWNER] = owner
    return held


@inner
def absorb(pool: Pool, row: int) -> None:
    """Let `row` take in the chunk to its right."""
    gone = pool.chunks[row, AFTER]
    after = pool.chunks[gone, AFTER]
    pool.chunks[row, BYTES] += pool.chunks[gone, BYTES]
    pool.chunks[row, AFTER] = after
    if after == NONE:
        pool.counters[LAST] = row
    else:
        pool.chunks[after, BEFORE] = row
    pool.spare[pool.counters[SPARE]] = gone
    pool.counters[SPARE] += 1


@inner
def give_back(pool: Pool, row: int) -> None:
    """Free the held chunk `row`, and merge it with free neighbours."""
    pool.chunks[row, OWNER] = FREE
    pool.counters[FREE_BYTES] += pool.chunks[row, BYTES]
    after, before = pool.chunks[row, AFTER], pool.chunks[row, BEFORE]
    if after != NONE and pool.chunks[after, OWNER] == FREE:
        absorb(pool, row)
    if before != NONE and pool.chunks[before, OWNER] == FREE:
        absorb(pool, before)


@inner
def grow(pool: Pool, size: int) -> int:
    """Add memory at the right end until a free chunk of at least `size` bytes stands there: its row."""
    row = pool.counters[LAST]
    if pool.chunks[row, OWNER] != FREE:
        end = pool.chunks[row, START] + pool.chunks[row, BYTES]
        row = new_row_after(pool, row)
        pool.chunks[row, START], pool.chunks[row, BYTES], pool.chunks[row, OWNER] = end, 0, FREE
    missing = max(size - pool.chunks[row, BYTES], 0)
    pool.chunks[row, BYTES] += missing
    pool.counters[CAPACITY] += missing
    pool.counters[FREE_BYTES] += missing
    return int(row)
