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
    next_event,
    select,
)
from remat_passes.planning.scene import Scene, fits, scene_of


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
def extension(g: Arrays, scene: Scene, op: int, step: int) -> int:
    """Bytes times steps that `extend` adds; -1 where they do not fit or a value may not cross the boundary."""
    area, start, events = 0, scene.start, scene.events
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        if g.storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            continue
        before = events[k - 1] >> 1
        if g.storages[s, MUST_NOT_SAVE] and before < scene.boundary <= step:
            return -1
        if not fits(scene, before + 1, step - 1, g.storages[s, SIZE]):
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
        scene = scene_of(g, steps, boundary, budget)
        start, events, live = scene.start, scene.events, scene.live
        done = np.zeros(len(g.ops), np.bool_)
        scores, stays = np.zeros(len(steps), np.float64), np.zeros(len(steps), np.bool_)
        for p in range(len(steps)):
            stays[p] = True
            op = steps[p]
            if done[op]:
                area = extension(g, scene, op, p)
                if area >= 0:
                    scores[p] = -(g.ops[op, TIME] + 1.0) / (area + 1.0)
            done[op] = True
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
