"""Block DP: which blocks to checkpoint and how often to repeat them, by dynamic programming over blocks and memory.

After the rotor recursion (Beaumont et al., Optimal checkpointing for heterogeneous chains, 2019, section 4), with
several options to run a block.  `best[i, j, m]` is the least time to run blocks `i` to `j` and their stages with `m`
units of memory beyond the values held at `i`:

    save option o of i:   run(i) + again(i, o) + best[i + 1, j, m - held(i, i + 1) - bytes(i, o)]
    checkpoint at k:      run(i .. k - 1) + best[k, j, m - held(i, k)] + best[i, k - 1, m]

Deviation: peaks within blocks are estimates here, since the exact simulator judges the sequences that come out.
"""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import compiled
from remat_passes.sequences.profile import IntArray

UNITS = 400
"""Resolution of memory."""
NEVER = 1 << 60


@compiled
def fill_tables(
    run_ns: IntArray,
    held: IntArray,
    option_bytes: IntArray,
    option_ns: IntArray,
    option_peak: IntArray,
    run_peak: IntArray,
    state: IntArray,
    unit: int,
    units: int,
) -> tuple[IntArray, IntArray]:
    """`best` and `choice` (-1: impossible; below the number of options: that option; else: checkpoint), see above."""
    k, options = option_bytes.shape
    best, choice = np.zeros((k + 1, k + 1, units), np.int64), np.zeros((k + 1, k + 1, units), np.int64)
    for i in range(k):
        for j in range(k):
            for m in range(units):
                best[i, j, m], choice[i, j, m] = NEVER, -1
    for length in range(k):
        for i in range(k - length):
            j = i + length
            rerun = 0
            for o in range(options):
                # Runs up to the last block are the forward's; repetitions have the backward's state at stage j alive.
                need = max(option_peak[i, o], run_peak[i, o] + (state[j] if j + 1 < k else 0))
                # To the nearest unit: rounding up would lose whole units over a long chain; the simulator judges.
                low = (need + unit // 2) // unit
                spent = (held[i, i + 1] + option_bytes[i, o] + unit // 2) // unit if j > i else 0
                for m in range(max(low, spent), units):
                    rest = best[i + 1, j, m - spent] if j > i else 0
                    time = run_ns[i] + option_ns[i, o] + rest
                    if time < best[i, j, m]:
                        best[i, j, m], choice[i, j, m] = time, o
            # A checkpoint at c: blocks before it save nothing, so only the values held there are spent.
            for c in range(i + 1, j + 1):
                rerun += run_ns[c - 1]
                spent = (held[i, c] + unit // 2) // unit
                for m in range(spent, units):
                    time = rerun + best[c, j, m - spent] + best[i, c - 1, m]
                    if time < best[i, j, m]:
                        best[i, j, m], choice[i, j, m] = time, options + c
    return best, choice


def instructions(held: IntArray, option_bytes: IntArray, choice: IntArray, unit: int, memory: int) -> IntArray:
    """The decisions of the tables for `memory` units, in rows; none if nothing fits.

    Rows are (block, -1) for a run, (block, -2 - option) for the last run, which saves what `option` says, and
    (block, option) for its stage.
    """
    options = option_bytes.shape[1]
    out: list[tuple[int, int]] = []
    # A stack in place of recursion: (i, j, m), or a stage (block, option, -1).
    stack = [(0, len(option_bytes) - 1, memory)]
    while stack:
        i, j, m = stack.pop()
        # A stage whose turn has come.
        if m < 0:
            out.append((i, j))
            continue
        if i > j:
            continue
        c = int(choice[i, j, m])
        if c < 0:
            return np.empty((0, 2), np.int64)
        if c < options:
            out.append((i, -2 - c))
            spent = (int(held[i, i + 1]) + int(option_bytes[i, c]) + unit // 2) // unit
            # The stack turns the order round: blocks after i run and are reversed before the stage of i.
            stack.append((i, c, -1))
            if j > i:
                stack.append((i + 1, j, m - spent))
        else:
            at = c - options
            out += [(s, -1) for s in range(i, at)]
            spent = (int(held[i, at]) + unit // 2) // unit
            stack += [(i, at - 1, m), (at, j, m - spent)]
    return np.array(out, np.int64)
