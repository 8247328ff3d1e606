"""Moves of the local search: drop repetitions, and hoist a recomputation to a step where memory is free."""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    MOVABLE,
    PRODUCER,
    READS,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
    drop_dead,
    find_events,
    live_bytes,
)

HOIST_STEPS = 24
"""How many steps back `hoist` looks."""


@compiled
def drop_repeats(
    g: Arrays, steps: IntArray, boundary: int, percent: int, low: int, high: int, seed: int
) -> tuple[IntArray, int]:
    """Drop `percent` of the repetitions of operators `low` to `high` (exclusive), drawn from `seed`."""
    done = np.zeros(len(g.ops), np.bool_)
    left = np.empty(len(steps), np.int64)
    count, bound = 0, boundary
    for p in range(len(steps)):
        op = steps[p]
        # Drawn at every step, so that the numbers do not depend on the range; the low bits of such a generator are
        # poor.
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        if done[op] and low <= op < high and (seed >> 8) % 100 < percent:
            bound -= 1 if p < boundary else 0
        else:
            left[count] = op
            count += 1
        done[op] = True
    return drop_dead(g, left[:count].copy(), bound)


@inner
def repeats(g: Arrays, steps: IntArray) -> BoolArray:
    """For each step, whether it may move: its operator ran before, or is tangent-free and free to run elsewhere."""
    done = np.zeros(len(g.ops), np.bool_)
    found = np.zeros(len(steps), np.bool_)
    for p in range(len(steps)):
        found[p] = done[steps[p]] or g.ops[steps[p], MOVABLE] == 1
        done[steps[p]] = True
    return found


@compiled
def hoist(g: Arrays, steps: IntArray, boundary: int, most: int) -> tuple[IntArray, int, bool, int]:
    """Lower the highest peak by moving the run of repetitions there, or next to it, to an earlier place.

    A recomputation just before its reader can meet temporaries of the backward that did not exist a few steps
    earlier, while its result alone would have fitted next to them.

    Returns:
        The sequence, its boundary, whether the peak step is relieved, and the work done.
    """
    start, events = find_events(g, steps)
    live = live_bytes(g, steps, boundary, start, events)
    again = repeats(g, steps)
    peak = 0
    for p in range(len(steps)):
        if live[p] > live[peak]:
            peak = p
    # The run of movable steps around the peak moves as one, since its steps may need each other.
    low = peak
    while low > boundary and again[low - 1]:
        low -= 1
    high = peak
    while high < len(steps) and again[high]:
        high += 1
    work = len(steps)
    # Nothing at the peak can move, or the peak is in the forward, whose order is fixed.
    if low == high or low < boundary:
        return steps, boundary, False, work
    best, best_bound, best_peak = steps, boundary, live[peak]
    for to in range(low - 1, max(boundary, low - most) - 1, -1):
        # An input that is not made yet at `to` is not made farther back either.
        if not _movable(g, steps, start, events, low, high, to):
            break
        moved = np.empty(len(steps), np.int64)
        for p in range(len(steps)):
            moved[p] = steps[p]
        for p in range(low, high):
            moved[to + p - low] = steps[p]
        for p in range(to, low):
            moved[p + high - low] = steps[p]
        # A tangent-free first execution of the forward may be dead once its repetition runs earlier.
        moved, bound = drop_dead(g, moved, boundary)
        first, found = find_events(g, moved)
        after = live_bytes(g, moved, bound, first, found)
        # Only between the new place and the old one can the profile rise.
        top = 0
        for p in range(to, min(high, len(moved))):
            top = max(top, after[p])
        work += 2 * len(steps)
        if top < best_peak:
            best, best_bound, best_peak = moved, bound, top
    return best, best_bound, best_peak < live[peak], work


@inner
def _movable(g: Arrays, steps: IntArray, start: IntArray, events: IntArray, low: int, high: int, to: int) -> bool:
    """Whether the inputs of steps `low` to `high` that are not made among them exist at step `to`."""
    for p in range(low, high):
        op = steps[p]
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            s = g.items[i]
            # Residents are always there; so is what no event of the sequence makes.
            if g.storages[s, PRODUCER] < 0 or start[s] == start[s + 1]:
                continue
            # The first instance decides: later ones are repetitions of the same value.
            made = events[start[s]] >> 1
            if made >= to and not low <= made < p:
                return False
    return True
