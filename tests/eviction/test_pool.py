"""The simulated pool against one of single bytes, and the sliding window against all windows."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from remat_passes.eviction.pool import (
    AFTER,
    BEFORE,
    BYTES,
    CAPACITY,
    FREE,
    FREE_BYTES,
    LAST,
    NONE,
    OWNER,
    START,
    best_fit,
    give_back,
    grow,
    new_pool,
    rounded,
    take,
)
from remat_passes.eviction.window import cheapest_window
from remat_passes.sequences.profile import FloatArray, IntArray

MOST = 12
"""Tensors that are held at once."""
TAKE_LEFT, TAKE_RIGHT, GIVE_BACK = range(3)
Action = tuple[int, int, int]
"""What to do, for which owner, and how many bytes."""


@njit  # type: ignore[untyped-decorator]
def played(capacity: int, actions: IntArray) -> tuple[IntArray, IntArray, bool]:
    """The chunks by address and the counters after all actions, and whether the links back are those onward."""
    pool = new_pool(capacity, MOST)
    row_of = np.full(MOST, NONE, np.int64)
    for k in range(len(actions)):
        kind, owner, size = actions[k]
        if kind == GIVE_BACK and row_of[owner] != NONE:
            give_back(pool, row_of[owner])
            row_of[owner] = NONE
        elif kind != GIVE_BACK and row_of[owner] == NONE:
            row = best_fit(pool, size)
            if row == NONE:
                row = grow(pool, size)
            row_of[owner] = take(pool, row, size, owner, kind == TAKE_RIGHT)
    found = np.empty((len(pool.chunks), 3), np.int64)
    count, row, before, linked = 0, 0, NONE, True
    while row != NONE:
        linked = linked and pool.chunks[row, BEFORE] == before
        found[count] = pool.chunks[row, START], pool.chunks[row, BYTES], pool.chunks[row, OWNER]
        count += 1
        before, row = row, pool.chunks[row, AFTER]
    return found[:count].copy(), pool.counters, linked and pool.counters[LAST] == before


class NaivePool:
    """A pool that remembers the owner of every byte."""

    def __init__(self, capacity: int) -> None:
        self.owners = [FREE] * capacity

    def chunks(self) -> list[tuple[int, int, int]]:
        """Start, bytes and owner of each run of bytes of one owner."""
        found, start = [], 0
        for owner, run in groupby(self.owners):
            size = len(list(run))
            found.append((start, size, owner))
            start += size
        return found

    def take(self, owner: int, size: int, from_right: bool) -> None:
        """As `best_fit` and `take`, or `grow`."""
        fitting = [(has, start) for start, has, of in self.chunks() if of == FREE and has >= size]
        if not fitting:
            behind = 0
            while behind < len(self.owners) and self.owners[len(self.owners) - 1 - behind] == FREE:
                behind += 1
            self.owners += [FREE] * (size - behind)
            fitting = [(size, len(self.owners) - size)]
        has, start = min(fitting)
        first = start + has - size if from_right else start
        self.owners[first : first + size] = [owner] * size

    def act(self, action: Action) -> None:
        """One action."""
        kind, owner, size = action
        if kind == GIVE_BACK:
            self.owners = [FREE if of == owner else of for of in self.owners]
        elif owner not in self.owners:
            self.take(owner, size, kind == TAKE_RIGHT)


ACTIONS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, MOST - 1), st.integers(1, 20)), max_size=60)


@settings(max_examples=300)
@given(capacity=st.integers(1, 100), actions=ACTIONS)
def test_the_pool_is_that_of_single_bytes(capacity: int, actions: list[Action]) -> None:
    naive = NaivePool(capacity)
    for action in actions:
        naive.act(action)
    chunks, counters, linked = played(capacity, np.array(actions, np.int64).reshape(-1, 3))
    assert linked
    assert [tuple(chunk) for chunk in chunks.tolist()] == naive.chunks()
    assert counters[CAPACITY] == len(naive.owners)
    assert counters[FREE_BYTES] == naive.owners.count(FREE)


def test_sizes_are_rounded_up() -> None:
    @njit  # type: ignore[untyped-decorator]
    def sizes() -> tuple[int, int, int, int]:
        return rounded(0, 512), rounded(1, 512), rounded(512, 512), rounded(513, 512)

    assert sizes() == (0, 512, 512, 1024)


@njit  # type: ignore[untyped-decorator]
def window_of(sizes: IntArray, costs: FloatArray, wanted: int) -> tuple[int, int]:
    """First and last chunk of the cheapest window over chunks that fill a pool; those of cost 0 are free."""
    pool = new_pool(sizes.sum(), len(sizes))
    by_row, place = np.zeros(len(pool.chunks), np.float64), np.zeros(len(pool.chunks), np.int64)
    for k in range(len(sizes)):
        # The rest of the pool is one free chunk, so the next tensor follows the one before.
        row = take(pool, pool.counters[LAST], sizes[k], k, False)
        by_row[row], place[row] = costs[k], k
    first, last = cheapest_window(pool, by_row, wanted)
    return (NONE, NONE) if first == NONE else (place[first], place[last])


COSTS = st.one_of(st.just(-1), st.just(0), st.integers(0, 30))


@settings(max_examples=400)
@given(chunks=st.lists(st.tuples(st.integers(1, 12), COSTS), min_size=1, max_size=14), wanted=st.integers(1, 60))
def test_no_contiguous_window_is_cheaper(chunks: list[tuple[int, int]], wanted: int) -> None:
    sizes = np.array([size for size, _ in chunks], np.int64)
    # Whole numbers, whose sums are exact in floating point in any order.
    costs = np.array([cost for _, cost in chunks], np.float64)
    able = [
        (costs[low:high].sum(), sizes[low:high].sum(), low, high - 1)
        for low in range(len(chunks))
        for high in range(low + 1, len(chunks) + 1)
        if (costs[low:high] >= 0).all() and sizes[low:high].sum() >= wanted
    ]
    first, last = window_of(sizes, costs, wanted)
    if not able:
        assert (first, last) == (NONE, NONE)
        return
    # The cheapest, of these the one of the fewest bytes; where free chunks lie at an end, several are.
    chosen = slice(first, last + 1)
    assert (costs[chosen] >= 0).all()
    assert (costs[chosen].sum(), sizes[chosen].sum()) == min((cost, size) for cost, size, _, _ in able)
