"""How room is made in a pool: one tensor after another (DTR, DTE), or one window (Coop); and what that leaves over.

With c the time of a tensor's operator and of its evicted neighbourhood, s its staleness, m its bytes and f the bytes
of the free chunks on both sides of it, a tensor is evicted by the least

    DTR     c / (m s)              until a free chunk is large enough      (Kirisame et al. 2021, section 4.1)
    DTE     c / ((m + f) s)        likewise                                (Hu et al. 2022, by Coop's section 2.2)
    Coop    c / s                  summed over a window, evicted at once   (Zhang et al. 2023, section 3.3)

Fragmentation is the free bytes of the pool over all its bytes (section 4.2).  It is taken for every request that found
no free chunk, when it has been placed: then memory is short, and what is free is what was of no use.  The paper says
that its figures are averages and not of what; a mean over a whole step would tell how full the pool is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.eviction.memory import CLOCK, EVICTIONS, LOCKS, RESIDENT, TOUCHED, Memory, evict, visit
from remat_passes.eviction.pool import (
    AFTER,
    BEFORE,
    BYTES,
    CAPACITY,
    FREE,
    FREE_BYTES,
    NONE,
    OWNER,
    Pool,
    best_fit,
    give_back,
    grow,
    rounded,
    take,
)
from remat_passes.eviction.window import cheapest_window
from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import KEPT, PRODUCER, REPEATABLE, TIME, FloatArray, IntArray

DTR, DTE, COOP = range(3)
"""How tensors are chosen, see above."""
EXPENSIVE, OVERWRITES = range(2)
"""Columns of `Room.classes`."""
SEARCHES, SCORED, REUSED = range(3)
"""Entries of `Room.tally`."""
MEAN, WORST = range(2)
"""Entries of `Room.fragments`."""


class Room(NamedTuple):
    """The memory of one run and where it lies.

    Attributes:
        m: Which storages are resident, evicted or locked.
        pool: The chunks.
        chunk: By storage, the row of its chunk, or `NONE`.
        costs: Scratch: the cost of evicting each chunk, by row.
        owners: Scratch: storages to evict.
        classes: A row an operator: whether its results belong to the left end (super-linear operators), and whether
            it may write a result over an input of the same size.
        tally: Requests for which something had to be evicted, tensors scored for them, and results written in place.
        fragments: Sum of the fragmentation rates at these requests, and the highest of them.
        policy: One of the ways above.
        ends: Whether the class of an operator decides the end of the chunk; else all results take the left one.
        in_place: Whether operators that may write over an input do.
        granularity: Bytes to whose multiples sizes are rounded.
    """

    m: Memory
    pool: Pool
    chunk: IntArray
    costs: FloatArray
    owners: IntArray
    classes: IntArray
    tally: IntArray
    fragments: FloatArray
    policy: int
    ends: bool
    in_place: bool
    granularity: int


@inner
def let_go(r: Room, storage: int, position: int) -> None:
    """Evict `storage` and free its chunk."""
    evict(r.m, storage, position)
    if r.chunk[storage] != NONE:
        give_back(r.pool, r.chunk[storage])
        r.chunk[storage] = NONE


@inner
def may_evict(r: Room, storage: int) -> bool:
    """Whether room may be made by `storage`: nothing needs it at the moment, and it can be remade."""
    if r.m.state[storage, RESIDENT] == 0 or r.m.state[storage, LOCKS] > 0 or r.m.g.storages[storage, KEPT]:
        return False
    return bool(r.m.g.ops[r.m.g.storages[storage, PRODUCER], REPEATABLE])


@inner
def cost_by_staleness(r: Room, storage: int) -> float:
    """Coop's h: c / s, in ns over ns."""
    r.tally[SCORED] += 1
    # Plus one, so that staleness also ranks values that cost no time; a visit that joins nothing only adds up.
    price = r.m.g.ops[r.m.g.storages[storage, PRODUCER], TIME] + visit(r.m, storage, -1) + 1
    return float(price) / float(max(r.m.counters[CLOCK] - r.m.state[storage, TOUCHED], 1))


@inner
def free_beside(pool: Pool, row: int) -> int:
    """Bytes of the free chunks on both sides of `row`."""
    found = 0
    for side in (BEFORE, AFTER):
        other = pool.chunks[row, side]
        if other != NONE and pool.chunks[other, OWNER] == FREE:
            found += pool.chunks[other, BYTES]
    return found


@inner
def evict_one(r: Room, position: int) -> bool:
    """Evict the tensor of the least h of DTR or DTE; whether there was one."""
    best, lowest = NONE, 0.0
    row = 0
    while row != NONE:
        owner = r.pool.chunks[row, OWNER]
        if owner >= 0 and may_evict(r, owner):
            size = r.pool.chunks[row, BYTES]
            if r.policy == DTE:
                size += free_beside(r.pool, row)
            h = cost_by_staleness(r, owner) / float(size)
            if best == NONE or h < lowest:
                best, lowest = owner, h
        row = r.pool.chunks[row, AFTER]
    if best == NONE:
        return False
    let_go(r, best, position)
    r.m.counters[EVICTIONS] += 1
    return True


@inner
def evict_window(r: Room, size: int, position: int) -> bool:
    """Evict all of Coop's cheapest window; whether there was one."""
    row = 0
    while row != NONE:
        owner = r.pool.chunks[row, OWNER]
        if owner == FREE:
            r.costs[row] = 0.0
        elif owner >= 0 and may_evict(r, owner):
            r.costs[row] = cost_by_staleness(r, owner)
        else:
            r.costs[row] = -1.0
        row = r.pool.chunks[row, AFTER]
    first, last = cheapest_window(r.pool, r.costs, size)
    if first == NONE:
        return False
    # Freed chunks merge and their rows go, so the owners are noted first.
    count = 0
    row = first
    while True:
        if r.pool.chunks[row, OWNER] != FREE:
            r.owners[count] = r.pool.chunks[row, OWNER]
            count += 1
        if row == last:
            break
        row = r.pool.chunks[row, AFTER]
    for i in range(count):
        let_go(r, r.owners[i], position)
        r.m.counters[EVICTIONS] += 1
    return True


@inner
def request(r: Room, size: int, owner: int, from_right: bool, frugal: bool, position: int) -> int:
    """Hand out `size` bytes, rounded: the row of the chunk, or `NONE` for no bytes.

    Args:
        r: The memory.
        size: Bytes.
        owner: Storage that they are for, or `HELD`.
        from_right: Whether they come from the right end of the free chunk.
        frugal: Whether to evict for them; else the pool grows.
        position: Of the program.
    """
    size = rounded(size, r.granularity)
    if size == 0:
        return NONE
    row = best_fit(r.pool, size)
    short = row == NONE
    if short:
        r.tally[SEARCHES] += 1
    while row == NONE and frugal:
        if not (evict_window(r, size, position) if r.policy == COOP else evict_one(r, position)):
            break
        row = best_fit(r.pool, size)
    if row == NONE:
        row = grow(r.pool, size)
    row = take(r.pool, row, size, owner, from_right)
    if short:
        rate = float(r.pool.counters[FREE_BYTES]) / float(r.pool.counters[CAPACITY])
        r.fragments[MEAN] += rate
        r.fragments[WORST] = max(r.fragments[WORST], rate)
    return row


@inner
def new_room(
    m: Memory, pool: Pool, classes: IntArray, policy: int, ends: bool, in_place: bool, granularity: int
) -> Room:
    """Nothing in the pool yet."""
    num_storages = len(m.g.storages)
    chunk, owners = np.full(num_storages, NONE, np.int64), np.zeros(num_storages, np.int64)
    costs, fragments = np.zeros(len(pool.chunks), np.float64), np.zeros(2, np.float64)
    tally = np.zeros(3, np.int64)
    return Room(m, pool, chunk, costs, owners, classes, tally, fragments, policy, ends, in_place, granularity)
