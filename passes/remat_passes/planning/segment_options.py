"""How each segment of the block DP may save: values evicted in the order of most bytes for the least time.

Evicting a value makes others cheaper to evict, since what they need is made again anyway; so the order is found one
value after another.  The options of a segment are prefixes of that order: those at which time for bytes turns worse.
"""

from __future__ import annotations

import numpy as np

from remat_passes.planning.compiled import compiled, inner
from remat_passes.planning.profile import END, PRODUCER, READS, SIZE, TIME, WRITES, Arrays, BoolArray, IntArray

OPTIONS = 8
"""Options of a segment."""
NEAR = 12
"""Neighbours in the order of production whose cost is found again after an eviction."""


@inner
def again_ns(
    ops: IntArray,
    storages: IntArray,
    items: IntArray,
    value: int,
    inner_to: BoolArray,
    saved: BoolArray,
    found: IntArray,
    stamp: int,
    stack: IntArray,
    keep: bool,
) -> int:
    """Time to make `value` again from what is saved, operators that run again already left out.

    Args:
        ops: See `Arrays`.
        storages: See `Arrays`.
        items: See `Arrays`.
        value: A storage.
        inner_to: Whether each storage is made and last read within the segment.
        saved: Whether each storage is saved.
        found: By operator, -1: runs again already.
        stamp: A number not in `found` yet.
        stack: Scratch.
        keep: Whether the operators run again from now on.
    """
    total, depth = 0, 1
    stack[0] = storages[value, PRODUCER]
    while depth > 0:
        depth -= 1
        op = stack[depth]
        if found[op] == -1 or (found[op] == stamp and not keep):
            continue
        found[op] = -1 if keep else stamp
        total += ops[op, TIME]
        for r in range(ops[op, READS], ops[op, WRITES]):
            s = items[r]
            if inner_to[s] and not saved[s]:
                stack[depth] = storages[s, PRODUCER]
                depth += 1
    return total


@inner
def prefixes(gone: IntArray, cost: IntArray, count: int) -> IntArray:
    """`OPTIONS` prefixes of an eviction order of `count` values: corners of the lower hull of time over bytes.

    Where there are more, those that matter least are left out; where there are fewer, the widest gaps are split.
    """
    hull, n = np.zeros(count + OPTIONS + 1, np.int64), 0
    for k in range(count + 1):
        while n >= 2 and (cost[hull[n - 1]] - cost[hull[n - 2]]) * (gone[k] - gone[hull[n - 1]]) >= (
            cost[k] - cost[hull[n - 1]]
        ) * (gone[hull[n - 1]] - gone[hull[n - 2]]):
            n -= 1
        hull[n] = k
        n += 1
    while n > OPTIONS:
        least, worst = -1.0, 1
        for m in range(1, n - 1):
            a, b, c = hull[m - 1], hull[m], hull[m + 1]
            loss = float(gone[b] - gone[a]) * float(cost[c] - cost[a]) - float(gone[c] - gone[a]) * float(
                cost[b] - cost[a]
            )
            if least < 0.0 or loss < least:
                least, worst = loss, m
        for m in range(worst, n - 1):
            hull[m] = hull[m + 1]
        n -= 1
    while n < OPTIONS:
        widest, at = 0, -1
        for m in range(n - 1):
            if hull[m + 1] > hull[m] + 1 and gone[hull[m + 1]] - gone[hull[m]] > widest:
                widest, at = gone[hull[m + 1]] - gone[hull[m]], m
        if at < 0:
            hull[n] = hull[n - 1]  # the same option again
            n += 1
            continue
        middle = (gone[hull[at]] + gone[hull[at + 1]]) // 2
        k = hull[at] + 1
        while k + 1 < hull[at + 1] and gone[k] < middle:
            k += 1
        for m in range(n, at + 1, -1):
            hull[m] = hull[m - 1]
        hull[at + 1] = k
        n += 1
    return hull[:OPTIONS]


@compiled
def options_of(
    g: Arrays,
    forward: IntArray,
    cuts: IntArray,
    stages: IntArray,
    segment: IntArray,
    last: IntArray,
    first_read: IntArray,
    last_read: IntArray,
    own: IntArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """`option_bytes`, `option_ns`, `option_peak`, `run_peak` and `rank` of `Segments`.

    Args:
        g: The problem.
        forward: See `Segments`; so are `cuts`, `stages`, `segment` and `last`.
        cuts: See `forward`.
        stages: See `forward`.
        segment: See `forward`.
        last: See `forward`.
        first_read: First position of the backward that reads each storage.
        last_read: Last such position, or -1.
        own: Bytes of the backward's own state at each of its positions.
    """
    segments, found = len(cuts) - 1, np.zeros(len(g.ops), np.int64)
    values = np.zeros((4, segments, OPTIONS), np.int64)
    rank = np.zeros(len(g.storages), np.int64)
    inside, saved = np.zeros(len(g.storages), np.bool_), last_read >= 0
    stack, ends = np.empty(len(g.items) + 1, np.int64), np.zeros(len(g.storages), np.int64)
    for i in range(segments):
        read, count = _values_read(g, forward, cuts, segment, last, saved, inside, i)
        order, gone, cost = _evictions(g, read[:count], inside, saved, found, stack)
        chosen, at = prefixes(gone, cost, count), 0
        for c in range(count):
            saved[order[c]], rank[order[c]] = True, OPTIONS
        for o in range(OPTIONS):
            while at < chosen[o]:
                saved[order[at]], rank[order[at]] = False, o
                at += 1
            values[0, i, o], values[1, i, o] = gone[count] - gone[at], cost[at]
            values[2, i, o] = _stage_peak(g.storages, read, saved, first_read, last_read, own, stages, i)
            values[3, i, o] = _run_peak(g, forward, cuts, segment, last, saved, ends, i)
        for c in range(count):
            saved[order[c]] = True
    return values[0], values[1], values[2], values[3], rank


@inner
def _values_read(
    g: Arrays,
    forward: IntArray,
    cuts: IntArray,
    segment: IntArray,
    last: IntArray,
    saved: BoolArray,
    inside: BoolArray,
    i: int,
) -> tuple[IntArray, int]:
    """Values of segment `i` that the backward reads, first those that live in it only; and the number of those.

    `inside` receives which storages live in the segment only.
    """
    own, through = np.empty(len(g.storages), np.int64), np.empty(len(g.storages), np.int64)
    count, others = 0, 0
    for t in range(cuts[i], cuts[i + 1]):
        for w in range(g.ops[forward[t], WRITES], g.ops[forward[t], END]):
            s = g.items[w]
            inside[s] = segment[s] == i and last[s] <= i
            if segment[s] != i or not saved[s]:
                continue
            if inside[s]:
                own[count] = s
                count += 1
            else:
                through[others] = s
                others += 1
    for k in range(others):
        own[count + k] = through[k]
    return own[: count + others].copy(), count


@inner
def _evictions(
    g: Arrays, read: IntArray, inside: BoolArray, saved: BoolArray, found: IntArray, stack: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """`read` in the order of eviction; the bytes gone and the time added before each, and at the end.

    All of `read` is saved before, and nothing of it after; `found` is scratch of `again_ns`, 0 before the first call.
    """
    ops, storages, items, count = g.ops, g.storages, g.items, len(read)
    order, gone, cost = np.empty(count, np.int64), np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    again, left, changed = np.zeros(count, np.int64), np.ones(count, np.bool_), -1
    stamp = 0
    for op in range(len(found)):
        found[op] = 0
    for turn in range(count):
        best = -1
        for c in range(count):
            if not left[c]:
                continue
            if changed < 0 or abs(c - changed) <= NEAR:
                stamp += 1
                again[c] = again_ns(ops, storages, items, read[c], inside, saved, found, stamp, stack, False)
            size = storages[read[c], SIZE]
            if best < 0 or size * max(again[best], 1) > storages[read[best], SIZE] * max(again[c], 1):
                best = c
        s = read[best]
        left[best], saved[s], changed = False, False, best
        order[turn], gone[turn + 1] = s, gone[turn] + storages[s, SIZE]
        again_all = again_ns(ops, storages, items, s, inside, saved, found, stamp, stack, True)
        cost[turn + 1] = cost[turn] + again_all
    return order, gone, cost


@inner
def _stage_peak(
    storages: IntArray,
    read: IntArray,
    saved: BoolArray,
    first_read: IntArray,
    last_read: IntArray,
    own: IntArray,
    stages: IntArray,
    i: int,
) -> int:
    """Bytes that stage `i` needs: what the backward itself holds, and values of the segment until their last read."""
    low, high = stages[i + 1], stages[i]
    if high <= low:
        return 0
    delta = np.zeros(high - low + 1, np.int64)
    for s in read:
        if last_read[s] >= low:
            delta[0 if saved[s] else max(first_read[s], low) - low] += storages[s, SIZE]
            delta[min(last_read[s], high - 1) + 1 - low] -= storages[s, SIZE]
    total, largest = 0, 0
    for p in range(high - low):
        total += delta[p]
        largest = max(largest, total + own[low + p])
    return int(largest)


@inner
def _run_peak(
    g: Arrays,
    forward: IntArray,
    cuts: IntArray,
    segment: IntArray,
    last: IntArray,
    saved: BoolArray,
    ends: IntArray,
    i: int,
) -> int:
    """Bytes made in segment `i` that are alive at once while it runs."""
    ops, storages, items = g.ops, g.storages, g.items
    low, high = cuts[i], cuts[i + 1]
    for t in range(low, high):
        for r in range(ops[forward[t], READS], ops[forward[t], END]):
            ends[items[r]] = t - low
    delta = np.zeros(high - low + 1, np.int64)
    for t in range(low, high):
        for w in range(ops[forward[t], WRITES], ops[forward[t], END]):
            s = items[w]
            if segment[s] == i:
                delta[t - low] += storages[s, SIZE]
                delta[high - low if last[s] > i or saved[s] else ends[s] + 1] -= storages[s, SIZE]
    total, largest = 0, 0
    for t in range(high - low):
        total += delta[t]
        largest = max(largest, total)
    return int(largest)
