"""A sequence with its events and profile, and a constant-time test whether more bytes fit into a span of steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import Arrays, IntArray, find_events, live_bytes

BLOCK_BITS = 5
"""Steps are grouped by ``2 ** BLOCK_BITS`` for range maxima."""


class Scene(NamedTuple):
    """One sequence with its events and profile; see `profile`.

    Attributes:
        blocks: ``[l, b]``: maximum of `live` over ``2 ** l`` blocks of steps from block `b` on.
    """

    steps: IntArray
    boundary: int
    budget: int
    start: IntArray
    events: IntArray
    live: IntArray
    blocks: IntArray


@inner
def scene_of(g: Arrays, steps: IntArray, boundary: int, budget: int) -> Scene:
    """Events and profile of a sequence."""
    start, events = find_events(g, steps)
    live = live_bytes(g, steps, boundary, start, events)
    # A sparse table: ranges of all powers of two of blocks, so that two of them that overlap cover any range.
    count = (len(live) >> BLOCK_BITS) + 1
    levels = 1
    while 1 << levels <= count:
        levels += 1
    blocks = np.zeros((levels, count), np.int64)
    for p in range(len(live)):
        blocks[0, p >> BLOCK_BITS] = max(blocks[0, p >> BLOCK_BITS], live[p])
    for level in range(1, levels):
        # Ranges that would reach past the last block keep 0, and are never looked up.
        half = 1 << (level - 1)
        for b in range(count - 2 * half + 1):
            blocks[level, b] = max(blocks[level - 1, b], blocks[level - 1, b + half])
    return Scene(steps, boundary, budget, start, events, live, blocks)


@inner
def fits(live: IntArray, blocks: IntArray, limit: int, low: int, high: int) -> bool:
    """Whether live bytes are at most `limit` at every step from `low` to `high` inclusive; see `Scene`."""
    largest = 0
    # Whole blocks inside the span; the steps before `first` and from `after` on are looked at one by one.
    first, after = (low + (1 << BLOCK_BITS) - 1) >> BLOCK_BITS, (high + 1) >> BLOCK_BITS
    if first >= after:
        # No whole block inside: the first loop below takes all steps, the second none.
        first = after = (high + 1 + (1 << BLOCK_BITS) - 1) >> BLOCK_BITS
    else:
        level = 0
        while 2 << level <= after - first:
            level += 1
        largest = max(blocks[level, first], blocks[level, after - (1 << level)])
    if largest > limit:
        return False
    for p in range(low, min(first << BLOCK_BITS, high + 1)):
        if live[p] > limit:
            return False
    for p in range(after << BLOCK_BITS, high + 1):  # noqa: SIM110
        if live[p] > limit:
            return False
    return True
