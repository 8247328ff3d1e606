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
    BoolArray,
    IntArray,
    ascending,
    drop_dead,
    next_event,
    select,
)
from remat_passes.sequences.scene import Scene, fits, scene_of


@inner
def depends_on_dropped(g: Arrays, scene: Scene, stays: BoolArray, op: int, step: int) -> bool:
    """Whether a run of `op` was dropped whose result the run at `step` takes over, or leaves to the next one.

    The events do not show the drop, so what a further one costs shows in the next profile only.
    """
    ops, storages, items, start, events = g.ops, g.storages, g.items, scene.start, scene.events
    for i in range(ops[op, WRITES], ops[op, END]):
        s = items[i]
        if storages[s, KEPT]:
            continue
        k = next_event(start, events, s, step)
        # An instance that nobody reads would be read by the readers of the next one; one that is read would be
        # replaced by the one before, or by an earlier one if nobody reads that.
        other = k - 1
        if k + 1 == start[s + 1] or events[k + 1] & 1:
            other = k + 1
        if other < start[s + 1] and events[other] & 1 and not stays[events[other] >> 1]:
            return True
    return False


@inner
def extend(g: Arrays, live: IntArray, start: IntArray, events: IntArray, op: int, step: int, budget: int) -> bool:
    """Add to `live` what dropping `op` at `step` costs, as earlier results live on; False if it does not fit."""
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
        # Step by step and not by `fits`: other drops have changed `live`, which the block maxima do not know.
        for p in range(before, step):
            if live[p] + size > budget:
                fit = False
                break
        if not fit:
            high = i
            break
        for p in range(before, step):
            live[p] += size
    # All results fit; else `high` is the one that did not.
    if high == ops[op, END]:
        return True
    for i in range(low, high):  # take back the bytes of the results before
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
    """Bytes times steps that `extend` adds; -1 if they do not fit or a value may not cross the boundary."""
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

    Args:
        g: The problem.
        steps: The sequence; each repetition in it must be needed, see `profile.drop_dead`.
        boundary: Number of its steps in the forward.
        budget: Largest peak in bytes.
        max_passes: Largest number of passes.

    Returns:
        The shorter sequence, its boundary, and the number of passes.
    """
    for turn in range(max_passes):
        # A drop frees what its operator read, too, but only a new profile shows that: hence several passes.
        scene = scene_of(g, steps, boundary, budget)
        done, stays = np.zeros(len(g.ops), np.bool_), np.ones(len(steps), np.bool_)
        scores, places, count = np.empty(len(steps), np.float64), np.empty(len(steps), np.int64), 0
        for p in range(len(steps)):
            op = steps[p]
            if done[op]:
                area = extension(g, scene, op, p)
                if area >= 0:
                    # Plus one on both sides: free and instant repetitions get finite scores that still tell them
                    # apart.
                    scores[count], places[count] = -(g.ops[op, TIME] + 1.0) / (area + 1.0), p
                    count += 1
            done[op] = True
        # Pieces of the profile are independent (see `profile`), so the events stay valid while repetitions are
        # dropped, but for those of instances that nobody reads: these wait for the next pass.
        for c in ascending(scores[:count]):
            p = places[c]
            stays[p] = depends_on_dropped(g, scene, stays, steps[p], p) or not extend(
                g, scene.live, scene.start, scene.events, steps[p], p, budget
            )
        if count == 0:
            return steps, boundary, turn + 1
        shorter, bound = select(steps, boundary, stays)
        # No drop fitted: a further pass would see the same profile.
        if len(shorter) == len(steps):
            return steps, boundary, turn + 1
        steps, boundary = drop_dead(g, shorter, bound)
    return steps, boundary, max_passes
