"""How long a step waits for its copies, in compiled loops: the model of `remat_compiler.simulate.transfers`.

For plans that move each instance once, to one tier.
"""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import IntArray
from remat_passes.transfers.prefetch import Moves

_GONE, _ASKED, _READ, _MADE = range(4)
"""What happens around a step, in this order: memory is given up, copies back are asked for, and awaited; it has run."""


@inner
def waiting_ns(moves: Moves, places: IntArray, begins_ns: IntArray, boundary: int) -> int:
    """What the step waits for copies.

    Args:
        moves: What is moved.
        places: When each leaves and returns, see `prefetch.places`.
        begins_ns: When each step begins if none waits.
        boundary: First step of the backward.
    """
    count, n = len(places), len(begins_ns)
    events = np.empty(4 * count, np.int64)
    for i in range(count):
        leaves, returns = places[i, 0], places[i, 1]
        # No copy is under way from one graph to the other, where nobody could wait for it.
        begun = max(moves.made[i], boundary - 1) if leaves > boundary else moves.made[i]
        read = min(moves.read[i], boundary) if returns < boundary else moves.read[i]
        # Step, kind, then of those that may begin at once the one that is needed first, and the number of the move.
        events[4 * i] = ((begun * 4 + _MADE) * n + leaves) * count + i
        events[4 * i + 1] = ((leaves * 4 + _GONE) * n) * count + i
        events[4 * i + 2] = ((returns * 4 + _ASKED) * n + read) * count + i
        events[4 * i + 3] = ((read * 4 + _READ) * n) * count + i
    events.sort()
    out_end, back_end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    late, out_free, back_free = 0, 0, 0
    for event in events:
        i, kind, step = event % count, event // (n * count) % 4, event // (4 * n * count)
        if kind == _GONE:
            late = max(late, out_end[i] - begins_ns[step])
        elif kind == _READ:
            late = max(late, back_end[i] - begins_ns[step])
        elif kind == _ASKED:
            back_free = back_end[i] = max(late + begins_ns[step], back_free) + moves.back_ns[i]
        else:
            out_free = out_end[i] = max(late + begins_ns[step + 1], out_free) + moves.out_ns[i]
    return late
