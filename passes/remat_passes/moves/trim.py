"""Trim: drop repetitions that the budget does not need, because an earlier instance can live on."""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
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
    next_event,
    select,
)
from remat_passes.sequences.scene import Scene, fits, scene_of


@inner
def extend(g: Arrays, live: IntArray, start: IntArray, events: IntArray, op: int, step: int, budget: int) -> bool:
    """Let what replaces the results of `op` at `step` live on in `live`, where that fits."""
    ops, storages, items = g.ops, g.storages, g.items
    low, high = ops[op, WRITES], ops[op, END]
    for i in range(low, high):
        s = items[i]
        if storages[s, KEPT]:
            continue
        k, size = next_event(start, events, s, step), storages[s, SIZE]
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue  # nobody reads this instance
        before = (events[k - 1] >> 1) + 1
        fit = True
        for p in range(before, step):
            if live[p] + size > budget:
                fit = False
                break
        if not fit:
            high = i
            break
        for p in range(before, step):
            live[p] += size
    if high == ops[op, END]:
        return True
    for i in range(low, high):  # take back what was added for the results before
        s = items[i]
        if storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue
        for p in range((events[k - 1] >> 1) + 1, step):
            live[p] -= storages[s, SIZE]
    return False


@inner
def extension(g: Arrays, scene: Scene, op: int, step: int) -> int:
    """Bytes times steps that `extend` adds; -1 where they do not fit or a value may not cross the boundary."""
    ops, storages, items = g.ops, g.storages, g.items
    area, start, events, live, blocks = 0, scene.start, scene.events, scene.live, scene.blocks
    for i in range(ops[op, WRITES], ops[op, END]):
        s = items[i]
        if storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue
        before = events[k - 1] >> 1
        if storages[s, MUST_NOT_SAVE] and before < scene.boundary <= step:
            return -1
        if not fits(live, blocks, scene.budget - storages[s, SIZE], before + 1, step - 1):
            return -1
        area += storages[s, SIZE] * (step - before)
    return area


@compiled
def trim(g: Arrays, steps: IntArray, boundary: int, budget: int, max_passes: int) -> tuple[IntArray, int, int]:
    """Drop repetitions, those of most time for the least bytes and steps first, while the peak fits `budget`.

    Returns:
        The shorter sequence, its boundary, and the number of passes.
    """
    for turn in range(max_passes):
        scene = scene_of(g, steps, boundary, budget)
        start, events, live = scene.start, scene.events, scene.live
        done, stays = np.zeros(len(g.ops), np.bool_), np.ones(len(steps), np.bool_)
        scores, places, count = np.empty(len(steps), np.float64), np.empty(len(steps), np.int64), 0
        for p in range(len(steps)):
            op = steps[p]
            if done[op]:
                area = extension(g, scene, op, p)
                if area >= 0:
                    scores[count], places[count] = -(g.ops[op, TIME] + 1.0) / (area + 1.0), p
                    count += 1
            done[op] = True
        for c in ascending(scores[:count]):
            p = places[c]
            stays[p] = not extend(g, live, start, events, steps[p], p, budget)
        if count == 0:
            return steps, boundary, turn + 1
        shorter, bound = select(steps, boundary, stays)
        if len(shorter) == len(steps):
            return steps, boundary, turn + 1
        steps, boundary = drop_dead(g, shorter, bound)
    return steps, boundary, max_passes
