"""The backward of a plan as tasks for `separator`: a task a step, a value an instance of a storage.

Repetitions are tasks like any other, and every read keeps to the instance that it means.
"""

from __future__ import annotations

import numpy as np

from remat_passes.orders.separator import Tasks
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    KEPT,
    READS,
    REPLAY,
    SIZE,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
)

FREE, ORDERED, FIXED = range(3)
"""How an operator may move: anywhere; not past others that are ordered; not at all."""


@compiled
def tasks_of(g: Arrays, freedom: IntArray, steps: IntArray, boundary: int) -> Tasks:
    """The steps from `boundary` on as tasks; the values are instances of storages, and random states to be replayed."""
    n = len(steps)
    first_at = np.full(len(g.ops), -1, np.int64)
    own, fixed = np.empty(n, np.int64), np.empty(n, np.bool_)
    for p in range(n):
        own[p], fixed[p] = g.ops[steps[p], WORKSPACE], freedom[steps[p]] == FIXED
        if first_at[steps[p]] < 0:
            first_at[steps[p]] = p
    begin, of, made_at = _instances(g, steps)
    value, read_at = _reads(g, steps, begin)
    later, earlier = _pairs(g, freedom, steps, first_at, of, made_at, value, read_at)
    # Random states: made by a first execution, read by the others, which hold the generator's own state meanwhile.
    drawn, replays = _replays(g, steps, first_at)
    state_of = np.full(len(g.ops), -1, np.int64)
    for k in range(len(drawn)):
        state_of[drawn[k]] = k
    for p in replays:
        own[p] += g.storages[g.ops[steps[p], REPLAY], SIZE]
    size = np.empty(len(of) + len(drawn), np.int64)
    kept = np.zeros(len(size), np.bool_)
    for v in range(len(of)):
        size[v], kept[v] = g.storages[of[v], SIZE], g.storages[of[v], KEPT] == 1 and v == begin[of[v]]
    for k in range(len(drawn)):
        size[len(of) + k] = g.storages[g.ops[drawn[k], REPLAY], SIZE]
    return behind(
        boundary,
        own,
        fixed,
        size,
        np.concatenate((made_at, first_at[drawn])),
        kept,
        np.concatenate((value, len(of) + state_of[steps[replays]])),
        np.concatenate((read_at, replays)),
        later,
        earlier,
        g.tangent_bytes,
    )


@compiled
def behind(
    boundary: int,
    own: IntArray,
    fixed: BoolArray,
    size: IntArray,
    made_at: IntArray,
    kept: BoolArray,
    value: IntArray,
    read_at: IntArray,
    later: IntArray,
    earlier: IntArray,
    base: int,
) -> Tasks:
    """Tasks from position `boundary` on.

    Args:
        boundary: First position that counts.
        own: As in `Tasks`, by position; so is `fixed`.
        fixed: See `own`.
        size: As in `Tasks`, by value; so is `kept`.
        made_at: Position at which each value is made; if before `boundary`, the value exists from the start.
        kept: See `size`.
        value: The value of each read ...
        read_at: ... and the position of the read.
        later: With `earlier`: pairs of positions of which the second must run before the first.
        earlier: See `later`.
        base: As in `Tasks`.
    """
    # Values that the forward makes and reads up by itself are not part of the tasks.
    alive = kept | (made_at >= boundary)
    for i in range(len(value)):
        if read_at[i] >= boundary:
            alive[value[i]] = True
    rank = np.cumsum(alive) - 1
    start = np.zeros(alive.sum() + 1, np.int64)
    for i in range(len(value)):
        if read_at[i] >= boundary:
            start[rank[value[i]] + 1] += 1
    start = np.cumsum(start)
    fill, readers = start.copy(), np.empty(start[-1], np.int64)
    for i in range(len(value)):
        if read_at[i] >= boundary:
            readers[fill[rank[value[i]]]] = read_at[i] - boundary
            fill[rank[value[i]]] += 1
    inside = (later >= boundary) & (earlier >= boundary)
    return Tasks(
        own[boundary:],
        size[alive],
        np.maximum(made_at[alive] - boundary, -1),
        kept[alive],
        start,
        readers,
        later[inside] - boundary,
        earlier[inside] - boundary,
        fixed[boundary:],
        base,
    )


@inner
def _instances(g: Arrays, steps: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Row starts of each storage; the storage of each instance, and the step that makes it, ascending in a row."""
    begin = np.zeros(len(g.storages) + 1, np.int64)
    for op in steps:
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            begin[g.items[i] + 1] += 1
    begin = np.cumsum(begin)
    fill = begin.copy()
    of, made_at = np.empty(begin[-1], np.int64), np.empty(begin[-1], np.int64)
    for p in range(len(steps)):
        for i in range(g.ops[steps[p], WRITES], g.ops[steps[p], END]):
            s = g.items[i]
            of[fill[s]], made_at[fill[s]] = s, p
            fill[s] += 1
    return begin, of, made_at


@inner
def _reads(g: Arrays, steps: IntArray, begin: IntArray) -> tuple[IntArray, IntArray]:
    """The instance that each read means, and the step that reads."""
    count = 0
    for op in steps:
        count += g.ops[op, WRITES] - g.ops[op, READS]
    value, read_at = np.empty(count, np.int64), np.empty(count, np.int64)
    made, k = begin.copy(), 0
    for p in range(len(steps)):
        for i in range(g.ops[steps[p], READS], g.ops[steps[p], WRITES]):
            s = g.items[i]
            # The latest instance; of a kept storage, the first.
            value[k], read_at[k] = begin[s] if g.storages[s, KEPT] else made[s] - 1, p
            k += 1
        for i in range(g.ops[steps[p], WRITES], g.ops[steps[p], END]):
            made[g.items[i]] += 1
    return value, read_at


@inner
def _pairs(
    g: Arrays,
    freedom: IntArray,
    steps: IntArray,
    first_at: IntArray,
    of: IntArray,
    made_at: IntArray,
    value: IntArray,
    read_at: IntArray,
) -> tuple[IntArray, IntArray]:
    """Pairs of positions of which the second must run before the first; a -1 is before every boundary."""
    n, reads, k = len(steps), len(value), 2 * len(value)
    later, earlier = np.full(2 * reads + 2 * n, -1, np.int64), np.full(2 * reads + 2 * n, -1, np.int64)
    for i in range(reads):
        v = value[i]
        # A reader runs after the maker, and the next instance after all readers of this one, which else would read it.
        later[i], earlier[i], earlier[reads + i] = read_at[i], made_at[v], read_at[i]
        if v + 1 < len(of) and of[v + 1] == of[v] and not g.storages[of[v], KEPT]:
            later[reads + i] = made_at[v + 1]
    # Executions of one operator keep their order: the first one may be special (kept results, random state).
    start = np.zeros(len(g.ops) + 1, np.int64)
    for op in steps:
        start[op + 1] += 1
    fill = np.cumsum(start)
    by_op = np.empty(n, np.int64)
    for p in range(n):
        by_op[fill[steps[p]]] = p
        fill[steps[p]] += 1
    for i in range(1, n):
        if steps[by_op[i]] == steps[by_op[i - 1]]:
            later[k], earlier[k] = by_op[i], by_op[i - 1]
            k += 1
    # Repetitions replay recorded states and have no effects, so only first executions are tied.
    before = -1
    for p in range(n):
        if freedom[steps[p]] != FREE and first_at[steps[p]] == p:
            later[k], earlier[k] = p, before
            k, before = k + 1, p
    return later[:k], earlier[:k]


@inner
def _replays(g: Arrays, steps: IntArray, first_at: IntArray) -> tuple[IntArray, IntArray]:
    """Operators that are executed again with their random state, ascending, and these executions' steps."""
    again = np.zeros(len(steps), np.bool_)
    drawn = np.zeros(len(g.ops), np.bool_)
    for p in range(len(steps)):
        if g.ops[steps[p], REPLAY] >= 0 and first_at[steps[p]] < p:
            again[p] = drawn[steps[p]] = True
    return np.flatnonzero(drawn), np.flatnonzero(again)
