"""Zoom: a smaller problem with the same profile, in which only the operators of a region may change places.

Everything else becomes *background*.  A step outside the region that touches a value of the region stays one step; a
run of other steps becomes one step.  The values that the region does not touch become one *filler* between each two
background steps, as large as all of them together.  Budget and differences of time stay the same, so a sequence that
fits and is cheaper here fits and is cheaper as a whole.

    steps         f0 f1 f2 f3 b3 f1 b2 b1 b0        region {f1}, which reads a and makes b
    zoomed        A  f1 B  .  .  f1 C  D  .         A makes a, B and C read b, D reads a; dots are runs
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    KEPT,
    PRODUCER,
    READS,
    REPEATABLE,
    REPLAY,
    SIZE,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
    drop_dead,
    find_events,
    live_bytes,
)


class Zoom(NamedTuple):
    """A region of a sequence as a problem and a sequence of its own.

    Attributes:
        g: The smaller problem: first the operators of the region, then one for each background step.
        steps: The smaller sequence.
        boundary: Its boundary.
        ops: Operator of the whole problem for each one of the region.
        begin: First step of the whole sequence that each background step represents, and ...
        end: ... the step after the last one that it represents.
    """

    g: Arrays
    steps: IntArray
    boundary: int
    ops: IntArray
    begin: IntArray
    end: IntArray


@inner
def _background(g: Arrays, steps: IntArray, boundary: int, inside: BoolArray, ours: BoolArray) -> IntArray:
    """Live bytes at every step of values that the region does not touch, with workspaces of operators outside of it."""
    start, events = find_events(g, steps)
    # The difference of two profiles: all, less one in which everything outside the region has no size.
    ops, storages = g.ops.copy(), g.storages.copy()
    for op in range(len(ops)):
        if not inside[op]:
            ops[op, WORKSPACE] = 0
    for s in range(len(storages)):
        if not ours[s]:
            storages[s, SIZE] = 0
    own = live_bytes(Arrays(ops, storages, g.items, g.tangent_bytes), steps, boundary, start, events)
    return live_bytes(g, steps, boundary, start, events) - own


@inner
def _touched(g: Arrays, inside: BoolArray) -> BoolArray:
    """Whether the region reads or makes each storage."""
    ours = np.zeros(len(g.storages), np.bool_)
    for op in range(len(g.ops)):
        if inside[op]:
            for i in range(g.ops[op, READS], g.ops[op, END]):
                ours[g.items[i]] = True
            # Repetitions in the region decide how long a random state lives.
            if g.ops[op, REPLAY] >= 0:
                ours[g.ops[op, REPLAY]] = True
    return ours


@inner
def _numbers(chosen: BoolArray) -> tuple[IntArray, int]:
    """Consecutive numbers for the chosen entries, -1 for the rest; and the count of the chosen."""
    numbers, count = np.full(len(chosen), -1, np.int64), 0
    for i in range(len(chosen)):
        if chosen[i]:
            numbers[i] = count
            count += 1
    return numbers, count


@inner
def _is_quiet(g: Arrays, op: int, inside: BoolArray, ours: BoolArray) -> bool:
    """Whether an operator is outside of the region and touches nothing of it."""
    if inside[op]:
        return False
    for i in range(g.ops[op, READS], g.ops[op, END]):  # noqa: SIM110
        if ours[g.items[i]]:
            return False
    return True


@inner
def _runs(
    g: Arrays, steps: IntArray, boundary: int, inside: BoolArray, ours: BoolArray, around: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """For each background step the first step, the step after the last, and the most bytes of `around`."""
    n, places, p = len(steps), 0, 0
    begin, end, highest = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    while p < n:
        if inside[steps[p]]:
            p += 1
            continue
        first, most, quiet = p, around[p], _is_quiet(g, steps[p], inside, ours)
        p += 1
        # A run ends at the boundary, so that the smaller sequence has a step at which its own boundary can be.
        while quiet and p < n and p != boundary and _is_quiet(g, steps[p], inside, ours):
            most = max(most, around[p])
            p += 1
        follows = places > 0 and end[places - 1] == first and first != boundary
        if quiet and follows and highest[places - 1] >= most:
            # The step before needs as much and nothing of the region runs between: it represents this run as well.
            end[places - 1] = p
            continue
        begin[places], end[places], highest[places] = first, p, most
        places += 1
    return begin[:places].copy(), end[:places].copy(), highest[:places].copy()


@inner
def _copy_region(
    g: Arrays, op_at: IntArray, storage_at: IntArray, ops: IntArray, storages: IntArray, items: IntArray
) -> int:
    """Fill in the region's operators and storages under their new numbers; the number of items."""
    for s in range(len(g.storages)):
        if storage_at[s] >= 0:
            maker = g.storages[s, PRODUCER]
            storages[storage_at[s]] = g.storages[s]
            storages[storage_at[s], PRODUCER] = op_at[maker] if maker >= 0 else -1
    total = 0
    for op in range(len(g.ops)):
        if op_at[op] >= 0:
            # Items keep their order inside an operator, so its three bounds move by one distance.
            k, shift = op_at[op], total - g.ops[op, READS]
            ops[k] = g.ops[op]
            for i in range(g.ops[op, READS], g.ops[op, END]):
                items[i + shift] = storage_at[g.items[i]]
            ops[k, READS], ops[k, WRITES], ops[k, END] = total, g.ops[op, WRITES] + shift, g.ops[op, END] + shift
            total = ops[k, END]
            if ops[k, REPLAY] >= 0:
                ops[k, REPLAY] = storage_at[ops[k, REPLAY]]
    return total


@inner
def _add_background(
    g: Arrays,
    op: int,
    k: int,
    filler: int,
    storage_at: IntArray,
    ops: IntArray,
    storages: IntArray,
    items: IntArray,
    total: int,
) -> int:
    """Fill in background step `k`, which touches the region as `op` does; the number of items.

    It reads the filler before it and writes the one after it, so each filler lives exactly between two such steps.
    """
    # REPEATABLE and MOVABLE stay 0: background runs once and keeps its order.
    ops[k, REPLAY], ops[k, READS] = -1, total
    for i in range(g.ops[op, READS], g.ops[op, WRITES]):
        if storage_at[g.items[i]] >= 0:
            items[total] = storage_at[g.items[i]]
            total += 1
    # The first background step has no filler before it.
    if storages[filler, PRODUCER] >= 0:
        items[total] = filler
        total += 1
    ops[k, WRITES] = total
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        if storage_at[g.items[i]] >= 0:
            items[total] = storage_at[g.items[i]]
            storages[items[total], PRODUCER] = k
            total += 1
    items[total] = filler + 1
    storages[filler + 1, PRODUCER] = k
    ops[k, END] = total + 1
    return total + 1


@inner
def _repeated(steps: IntArray, count: int) -> BoolArray:
    """Whether each of `count` operators runs several times."""
    runs = np.zeros(count, np.int64)
    for op in steps:
        runs[op] += 1
    return runs > 1


@inner
def _bytes_before(g: Arrays, op: int, around: int, ours: BoolArray, repeats: bool) -> int:
    """Background bytes just before a step that runs `op`: those at the step less what it adds."""
    # A profile counts results and workspace at their own step, where the state before is alive, too.
    level = around - g.ops[op, WORKSPACE]
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        if not ours[g.items[i]]:
            level -= g.storages[g.items[i], SIZE]
    replay = g.ops[op, REPLAY]
    # A repeated operator has one state more at its step than before: its own at the first run, the generator's at
    # others.
    if repeats and replay >= 0 and not ours[replay]:
        level -= g.storages[replay, SIZE]
    return int(level)


@inner
def _sequence(
    steps: IntArray, boundary: int, op_at: IntArray, count: int, begin: IntArray, end: IntArray
) -> tuple[IntArray, int]:
    """The smaller sequence and its boundary."""
    new, m, place, p = np.empty(len(steps), np.int64), 0, 0, 0
    bound = -1
    while p < len(steps):
        # The first step at or after the boundary: runs never cross it.
        if p >= boundary and bound < 0:
            bound = m
        if place < len(begin) and begin[place] == p:
            new[m] = count + place
            p, place = end[place], place + 1
        else:
            new[m] = op_at[steps[p]]
            p += 1
        m += 1
    return new[:m].copy(), m if bound < 0 else bound


@compiled
def zoom(g: Arrays, steps: IntArray, boundary: int, inside: BoolArray) -> Zoom:
    """The region of the operators that are `inside`, all of them repeatable, in a sequence."""
    ours = _touched(g, inside)
    op_at, count = _numbers(inside)
    storage_at, values = _numbers(ours)
    around = _background(g, steps, boundary, inside, ours)
    begin, end, highest = _runs(g, steps, boundary, inside, ours, around)
    places, most_items = len(begin), 2 * len(begin)
    for op in range(len(g.ops)):
        most_items += g.ops[op, END] - g.ops[op, READS] if inside[op] else 0
    for p in begin:
        most_items += g.ops[steps[p], END] - g.ops[steps[p], READS]
    ops, items = np.zeros((count + places, 8), np.int64), np.empty(most_items, np.int64)
    storages = np.zeros((values + places + 1, 4), np.int64)
    storages[values, PRODUCER] = -1
    repeated = _repeated(steps, len(g.ops))
    total = _copy_region(g, op_at, storage_at, ops, storages, items)
    # Fillers have the bytes that are alive while the region may run, between two background steps.
    for b in range(places):
        op, filler = steps[begin[b]], values + b
        if b > 0:
            storages[filler, SIZE] = _bytes_before(g, op, around[begin[b]], ours, repeated[op])
        total = _add_background(g, op, count + b, filler, storage_at, ops, storages, items, total)
    # The region runs last: what remains around it lives to the end.
    if places > 0 and end[places - 1] < len(steps):
        storages[values + places, SIZE], storages[values + places, KEPT] = around[len(steps) - 1], 1
    for b in range(places):
        # During a background step both of its fillers are alive; the workspace makes up the difference to the real
        # peak, and is negative if the values of both are partly the same.
        ops[count + b, WORKSPACE] = highest[b] - storages[values + b, SIZE] - storages[values + b + 1, SIZE]
    small, bound = _sequence(steps, boundary, op_at, count, begin, end)
    members = np.flatnonzero(inside)
    return Zoom(Arrays(ops, storages, items[:total].copy(), g.tangent_bytes), small, bound, members, begin, end)


@compiled
def whole(g: Arrays, steps: IntArray, view: Zoom, small: IntArray, bound: int) -> tuple[IntArray, int]:
    """The whole sequence after `view` of `steps` has become `small` with boundary `bound`."""
    count = len(view.ops)
    size = 0
    for k in small:
        size += 1 if k < count else view.end[k - count] - view.begin[k - count]
    longer = np.empty(size, np.int64)
    n, boundary = 0, 0
    for m in range(len(small)):
        if m == bound:
            boundary = n
        k = small[m]
        if k < count:
            longer[n] = view.ops[k]
            n += 1
        else:
            for p in range(view.begin[k - count], view.end[k - count]):
                longer[n] = steps[p]
                n += 1
    if bound >= len(small):
        boundary = n
    # The region may have stopped reading repetitions that the background holds.
    return drop_dead(g, longer, boundary)


@inner
def _mark(g: Arrays, op: int, most: int, inside: BoolArray, queue: IntArray, found: int) -> int:
    """Put `op` into the region if it may be repeated and there is room; the number of operators in `queue`."""
    if g.ops[op, REPEATABLE] and not inside[op] and found < most:
        inside[op] = True
        queue[found] = op
        found += 1
    return found


@inner
def _mark_inputs(g: Arrays, op: int, most: int, inside: BoolArray, queue: IntArray, found: int) -> int:
    """`_mark` the operators that make the inputs of `op`."""
    for i in range(g.ops[op, READS], g.ops[op, WRITES]):
        maker = g.storages[g.items[i], PRODUCER]
        if maker >= 0:
            found = _mark(g, maker, most, inside, queue, found)
    return found


@compiled
def region(g: Arrays, steps: IntArray, centre: int, most: int, inside: BoolArray) -> int:
    """Mark up to `most` more repeatable operators around step `centre`; the number marked.

    They are operators that run, or whose results are read, near that step, and operators that these need.
    """
    queue, found, done = np.empty(most, np.int64), 0, 0
    for away in range(len(steps)):
        # Half of the region lies around the step; the other half remains for what it is computed from.
        if found >= most // 2:
            break
        for p in (centre + away, centre - away - 1):
            if 0 <= p < len(steps):
                found = _mark(g, steps[p], most, inside, queue, found)
                found = _mark_inputs(g, steps[p], most, inside, queue, found)
    while done < found:
        found = _mark_inputs(g, queue[done], most, inside, queue, found)
        done += 1
    return found
