"""When what is moved gives up its memory, and when it takes memory again: as the copies need it and the budget allows.

A value leaves as soon as it may, and its memory is waited for as late as the budget allows, but not before the copy is
out.  It comes back as late as its copy still hides behind the step, which is as early as it must, and later if there is
no memory for it yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import IntArray


class Moves(NamedTuple):
    """Instances that are moved, each in one gap between two uses.

    Attributes:
        made: The step that makes each.
        first: First step of its gap.
        read: The step that ends the gap, which reads it.
        size_bytes: Its bytes.
        out_ns: Time of its copy from the device.
        back_ns: Time of the copy back.
    """

    made: IntArray
    first: IntArray
    read: IntArray
    size_bytes: IntArray
    out_ns: IntArray
    back_ns: IntArray


@inner
def places(moves: Moves, live_bytes: IntArray, begins_ns: IntArray, boundary: int, budget_bytes: int) -> IntArray:
    """A row for each move: the step from which its memory is free, and that before which it is taken again.

    Args:
        moves: What is moved.
        live_bytes: Live bytes at each step, with all of it moved for as long as it can be; changed to those with all of
            it moved for as long as it is.
        begins_ns: When each step begins, and at last when the step ends.
        boundary: First step of the backward.
        budget_bytes: Bytes that may be alive at each step.
    """
    found = np.empty((len(moves.made), 2), np.int64)
    _leave(moves, live_bytes, begins_ns, boundary, budget_bytes, found)
    _return(moves, live_bytes, begins_ns, boundary, budget_bytes, found)
    return found


@inner
def _leave(moves: Moves, live: IntArray, begins_ns: IntArray, boundary: int, budget: int, found: IntArray) -> None:
    """The step from which the memory of each is free, into the first column of `found`."""
    free_ns, n = 0, len(live)
    # In the order of the queue.
    for i in _by_two_keys(moves.made, moves.first, n):
        size, first, read = moves.size_bytes[i], moves.first[i], moves.read[i]
        free_ns = max(free_ns, begins_ns[moves.made[i] + 1]) + moves.out_ns[i]
        done = np.searchsorted(begins_ns, free_ns)
        # The forward waits for its copies at its end; the last step of the gap stays for the way back.
        latest = min(done, read - 1)
        if first <= boundary:
            latest = min(latest, boundary)
        latest = max(latest, first)
        step = first
        while step < latest and live[step] + size <= budget:
            live[step] += size
            step += 1
        found[i, 0] = step
        # What waits here makes all later steps late, by as much as the copy was.
        free_ns = max(free_ns, begins_ns[step])


@inner
def _return(moves: Moves, live: IntArray, begins_ns: IntArray, boundary: int, budget: int, found: IntArray) -> None:
    """The step before which memory is taken again for each, into the second column of `found`."""
    need_ns, n = 2**62, len(live)
    # From the end: the copy before must be done when the next one has to begin.
    for i in _by_two_keys(n - moves.read, np.arange(len(moves.read)), len(moves.read) + 1):
        size, read = moves.size_bytes[i], moves.read[i]
        need_ns = min(need_ns, begins_ns[read]) - moves.back_ns[i]
        step = np.searchsorted(begins_ns, need_ns, side="right") - 1
        step = max(step, found[i, 0] + 1, boundary if read >= boundary else 0)
        late = read
        # From its use backwards, for as long as there is memory for it.
        while late > step and live[late - 1] + size <= budget:
            late -= 1
            live[late] += size
        found[i, 1] = late
        need_ns = min(need_ns, begins_ns[late])


@inner
def _by_two_keys(first: IntArray, second: IntArray, most: int) -> IntArray:
    """Indices by `first`, then `second` (below `most`), then index."""
    return np.argsort(first * most + second, kind="mergesort")


@compiled
def find_places(moves: Moves, live_bytes: IntArray, begins_ns: IntArray, boundary: int, budget_bytes: int) -> IntArray:
    """`places`, for callers that are not compiled."""
    return places(moves, live_bytes, begins_ns, boundary, budget_bytes)
