"""Trim: drop repetitions that the budget does not need, because an earlier instance can live on."""

from __future__ import annotations

import numpy as np

from remat_passes.planning.compiled import compiled, inner
from remat_passes.planning.profile import (
    END,
    KEPT,
    MUST_NOT_SAVE,
    SIZE,
    TIME,
    WRITES,
    Arrays,
    IntArray,
    ascending,
    drop_dead,
    find_events,
    live_bytes,
    next_event,
    select,
)


@inner
def extend(g: Arrays, live: IntArray, start: IntArray, events: IntArray, op: int, step: int, sign: int) -> int:
    """Add (`sign` 1) or take back (-1) what the results of `op` hold if it does not run at `step`.

    Returns:
        The largest of the live bytes where they changed.
    """
    largest = 0
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        if g.storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue  # nobody reads this instance
        for p in range((events[k - 1] >> 1) + 1, step):
            live[p] += sign * g.storages[s, SIZE]
            largest = max(largest, live[p])
    return largest


@inner
def extension(g: Arrays, start: IntArray, events: IntArray, op: int, step: int, boundary: int) -> int:
    """Bytes times steps that `extend` adds; -1 where a value that must not be saved would cross the boundary."""
    area = 0
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        if g.storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue
        before = events[k - 1] >> 1
        if g.storages[s, MUST_NOT_SAVE] and before < boundary <= step:
            return -1
        area += g.storages[s, SIZE] * (step - before)
    return area


@compiled
def trim(g: Arrays, steps: IntArray, boundary: int, budget: int, max_passes: int) -> tuple[IntArray, int, int]:
    """Drop repetitions, those of most time for the least bytes and steps first, while the peak fits `budget`.

    Returns:
        The shorter sequence, its boundary, and the number of passes.
    """
    for turn in range(max_passes):
        start, events = find_events(g, steps)
        live = live_bytes(g, steps, boundary, start, events)
        done = np.zeros(len(g.ops), np.bool_)
        scores = np.zeros(len(steps), np.float64)
        for p in range(len(steps)):
            op = steps[p]
            if done[op]:
                area = extension(g, start, events, op, p, boundary)
                if area >= 0:
                    scores[p] = -(g.ops[op, TIME] + 1.0) / (area + 1.0)
            done[op] = True
        stays = np.ones(len(steps), np.bool_)
        for p in ascending(scores):
            if scores[p] == 0.0:
                break
            if extend(g, live, start, events, steps[p], p, 1) <= budget:
                stays[p] = False
            else:
                extend(g, live, start, events, steps[p], p, -1)
        shorter, bound = select(steps, boundary, stays)
        if len(shorter) == len(steps):
            return steps, boundary, turn + 1
        steps, boundary = drop_dead(g, shorter, bound)
    return steps, boundary, max_passes
