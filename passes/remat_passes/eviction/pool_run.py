"""The step run in a simulated pool: what is evicted, what is remade, and the trace, which is the plan.

As `memory.run`, which has bytes but no addresses.  Operators run in program order, and evicted inputs are remade by
running their producers in the same way.  Here each result, workspace and random state is a request to the pool, and
`room` says how room is made for it, `overwriting` which results need none.

Tensors that can never be evicted split the pool for good if they lie anywhere.  There these are the parameters, which
the paper places first, at the ends of the pool (section 3.5); here they are gradients and outputs, which are made in
the step.  `kept_first` gives them their places before it, at the price of bytes that nobody uses until then.
"""

from __future__ import annotations

import numpy as np

from remat_passes.eviction.memory import (
    CLOCK,
    EVICTIONS,
    HIGHEST,
    LAST_READ,
    LIVE,
    LOCKS,
    NEED,
    RESIDENT,
    TOUCHED,
    Memory,
    evict,
    new_memory,
    remade,
)
from remat_passes.eviction.overwriting import overwritten
from remat_passes.eviction.pool import CAPACITY, HELD, NONE, OWNER, give_back, new_pool
from remat_passes.eviction.room import (
    EXPENSIVE,
    MEAN,
    REUSED,
    SCORED,
    SEARCHES,
    WORST,
    Room,
    let_go,
    new_room,
    request,
)
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    KEPT,
    MUST_NOT_SAVE,
    PRODUCER,
    READS,
    REPEATABLE,
    REPLAY,
    SIZE,
    TIME,
    WORKSPACE,
    WRITES,
    Arrays,
    FloatArray,
    IntArray,
)

BOUNDARY, FORCED, ASKED, COMPARED, IN_PLACE, POOL_BYTES, MOST_BYTES = range(7)
"""Figures of a run: the boundary of its trace, evictions for want of room, requests that wanted them, tensors scored
for them, results written in place, bytes of the pool in the end, and most bytes of storages that were live in it."""


@inner
def make_result(
    r: Room, op: int, s: int, frugal: bool, stack: IntArray, at: IntArray, depth: int, position: int
) -> None:
    """Give the result `s` of `op` memory, and lock it, so that no further request of `op` evicts it."""
    m = r.m
    size = m.g.storages[s, SIZE]
    # What the caller keeps may have its place from the beginning.
    source, row = NONE, r.chunk[s]
    # Out of patience nothing more is evicted, in place neither.
    if frugal and size > 0 and not m.g.storages[s, KEPT]:
        source = overwritten(r, op, size, stack, at, depth, position)
    if source != NONE:
        row = r.chunk[source]
        r.chunk[source] = NONE
        evict(m, source, position)
        r.pool.chunks[row, OWNER] = s
        r.tally[REUSED] += 1
    elif row == NONE:
        from_right = r.ends and r.classes[op, EXPENSIVE] == 0
        row = request(r, size, s, from_right, frugal, position)
    remade(m, s)
    r.chunk[s] = row
    m.state[s, RESIDENT] = 1
    m.state[s, LOCKS] += 1
    m.counters[LIVE] += size


@inner
def execute(r: Room, op: int, frugal: bool, stack: IntArray, at: IntArray, depth: int, position: int) -> None:
    """Run one operator whose inputs are resident and locked."""
    m, g, again = r.m, r.m.g, depth > 1
    # Memory for the time of the operator alone: a second copy of each kept result, workspace, the generator's state.
    count = g.ops[op, END] - g.ops[op, WRITES]
    passing = np.full(count + 2, NONE, np.int64)
    extra = max(g.ops[op, WORKSPACE], 0)
    for k in range(count):
        s = g.items[g.ops[op, WRITES] + k]
        if m.state[s, RESIDENT] == 0:
            make_result(r, op, s, frugal, stack, at, depth, position)
        else:
            # A result that was still there is written again in its place, but for one that the caller holds.
            m.state[s, LOCKS] += 1
            if g.storages[s, KEPT]:
                passing[k] = request(r, g.storages[s, SIZE], HELD, r.ends, frugal, position)
                extra += g.storages[s, SIZE]
    passing[count] = request(r, max(g.ops[op, WORKSPACE], 0), HELD, r.ends, frugal, position)
    replay = g.ops[op, REPLAY]
    if replay >= 0:
        # Its random state stays, for repetitions; in one of them, the generator's own state is kept aside.
        stays = not again and g.ops[op, REPEATABLE]
        row = request(r, g.storages[replay, SIZE], HELD, r.ends, frugal, position)
        passing[count + 1] = NONE if stays else row
        extra += 0 if stays else g.storages[replay, SIZE]
        m.counters[LIVE] += g.storages[replay, SIZE] if stays else 0
    m.counters[HIGHEST] = max(m.counters[HIGHEST], m.counters[LIVE] + extra)
    finish(r, op, again, passing, position)


@inner
def finish(r: Room, op: int, again: bool, passing: IntArray, position: int) -> None:
    """Let time pass, unlock what `op` read and made, and free what only it needed."""
    m, g = r.m, r.m.g
    m.counters[CLOCK] += g.ops[op, TIME]
    for i in range(g.ops[op, READS], g.ops[op, END]):
        m.state[g.items[i], LOCKS] -= 1
        m.state[g.items[i], TOUCHED] = m.counters[CLOCK]
    for row in passing:
        if row != NONE:
            give_back(r.pool, row)
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        if again and m.state[s, NEED] < position and not g.storages[s, KEPT]:
            let_go(r, s, position)  # a second result, which nothing asks for any more


@inner
def release(r: Room, low: int, high: int, position: int) -> None:
    """Of items `low` to `high` (exclusive), evict those that the program reads no more after `position`."""
    m = r.m
    for i in range(low, high):
        s = m.g.items[i]
        if m.state[s, RESIDENT] == 0 or m.g.storages[s, KEPT] or m.state[s, LAST_READ] > position:
            continue
        # Eager eviction: remaking it stays possible.  What cannot be remade stays until nothing can need it.
        if m.g.ops[m.g.storages[s, PRODUCER], REPEATABLE] or m.state[s, NEED] <= position:
            let_go(r, s, position)


@inner
def cross(r: Room, frugal: bool, position: int) -> None:
    """Pass from the forward to the backward, which begins at `position`."""
    m = r.m
    for s in range(len(m.g.storages)):
        # Values that must not be saved leave; `position - 1`, since the operators from here on may still need them.
        if m.g.storages[s, MUST_NOT_SAVE] and m.state[s, RESIDENT]:
            let_go(r, s, position - 1)
    request(r, m.g.tangent_bytes, HELD, r.ends, frugal, position)
    m.counters[LIVE] += m.g.tangent_bytes


@inner
def place_kept(r: Room) -> None:
    """Give what the caller keeps, and what so is never evicted, its place at the left end, before anything runs."""
    for s in range(len(r.m.g.storages)):
        if r.m.g.storages[s, KEPT] and r.m.g.storages[s, PRODUCER] >= 0:
            r.chunk[s] = request(r, r.m.g.storages[s, SIZE], HELD, False, False, 0)


@inner
def run_to(
    r: Room,
    op: int,
    stack: IntArray,
    at: IntArray,
    trace: IntArray,
    done: int,
    most: int,
    position: int,
) -> int:
    """Run `op` of the program, and whatever it needs remade: the length of the trace then."""
    m, g = r.m, r.m.g
    # A stack in place of recursion, whose depth is that of the graph: operators, and the next input of each to look at.
    depth = 1
    stack[0], at[0] = op, g.ops[op, READS]
    while depth:
        op = stack[depth - 1]
        if at[depth - 1] < g.ops[op, WRITES]:
            s = g.items[at[depth - 1]]
            if m.state[s, RESIDENT] == 1:
                m.state[s, LOCKS] += 1
                at[depth - 1] += 1
            else:
                # Remake it first; the inputs found so far stay locked.
                stack[depth] = g.storages[s, PRODUCER]
                at[depth] = g.ops[stack[depth], READS]
                depth += 1
            continue
        execute(r, op, done < most, stack, at, depth, position)
        trace[done] = op
        done += 1
        depth -= 1
    return done


@compiled
def run_in_pool(
    g: Arrays,
    classes: IntArray,
    program: IntArray,
    boundary: int,
    last_need: IntArray,
    most: int,
    capacity: int,
    granularity: int,
    policy: int,
    ends: bool,
    in_place: bool,
    kept_first: bool,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Run `program`, whose backward begins at `boundary`, in a pool.

    Args:
        g: The problem.
        classes: See `Room.classes`.
        program: Operators, each once.
        boundary: Position in `program` of the backward.
        last_need: See `memory.last_needs`.
        most: Executions after which nothing is evicted any more.
        capacity: Bytes of the pool, a multiple of `granularity`.
        granularity: Bytes to whose multiples sizes are rounded.
        policy: How tensors are chosen, see `room`.
        ends: See `Room.ends`.
        in_place: See `Room.in_place`.
        kept_first: Whether what the caller keeps has its place from the beginning, see `place_kept`.

    Returns:
        The trace; its figures, see the entries above; mean and highest fragmentation rate at the requests for which
        something had to be evicted, 0 where there are none.
    """
    m: Memory = new_memory(g, last_need, most)
    # At once there are the storages, a second copy of kept results, the tangents, workspace, a state: all held.
    pool = new_pool(capacity, 2 * len(g.storages) + 4)
    r = new_room(m, pool, classes, policy, ends, in_place, granularity)
    if kept_first:
        place_kept(r)
    # Once nothing is evicted for room, what was evicted is remade once more at most.
    trace = np.empty(most + 4 * len(g.ops) + 2, np.int64)
    done, bound, expired = 0, 0, 0
    # Storages by the position after which nothing can need them: they are banished there.
    expiry = np.argsort(last_need[:, 1])
    stack, at = np.empty(len(g.ops) + 1, np.int64), np.empty(len(g.ops) + 1, np.int64)
    for position in range(len(program)):
        op = program[position]
        if position == boundary:
            bound = done
            cross(r, done < most, position)
        done = run_to(r, op, stack, at, trace, done, most, position)
        release(r, g.ops[op, READS], g.ops[op, END], position)
        while expired < len(expiry) and last_need[expiry[expired], 1] <= position:
            s = expiry[expired]
            expired += 1
            if m.state[s, RESIDENT] == 1 and not g.storages[s, KEPT]:
                let_go(r, s, position)
    # No backward: the boundary is the end of the trace.
    if boundary >= len(program):
        bound = done
    figures = np.zeros(7, np.int64)
    figures[BOUNDARY], figures[POOL_BYTES], figures[MOST_BYTES] = bound, pool.counters[CAPACITY], m.counters[HIGHEST]
    figures[FORCED], figures[ASKED] = m.counters[EVICTIONS], r.tally[SEARCHES]
    figures[COMPARED], figures[IN_PLACE] = r.tally[SCORED], r.tally[REUSED]
    rates = np.array([r.fragments[MEAN] / max(r.tally[SEARCHES], 1), r.fragments[WORST]], np.float64)
    return trace[:done].copy(), figures, rates
