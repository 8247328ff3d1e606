"""Block DP: which segments to checkpoint, run again and how often, by dynamic programming over segments and memory.

After the rotor recursion (Beaumont et al., Optimal checkpointing for heterogeneous chains, 2019, section 4), with
partial saving of a segment.  `best[i, j, m]` is the least time to run segments `i` to `j` and their stages with `m`
units of memory, what is held at `i` being there:

    save option o of i:   run(i) + again(i, o) + best[i + 1, j, m - held(i, i + 1) - bytes(i, o)]
    checkpoint at k:      run(i .. k - 1) + best[k, j, m - held(i, k)] + best[i, k - 1, m]

Deviation: peaks within segments are estimates here, since the exact simulator judges the sequences that come out.
"""

from __future__ import annotations

import numpy as np

from remat_passes.planning.compiled import compiled
from remat_passes.planning.profile import (
    PRODUCER,
    READS,
    REPEATABLE,
    WRITES,
    Arrays,
    IntArray,
    drop_dead,
)
from remat_passes.planning.segments import Segments

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
    """`best` and `choice` (-1: impossible, below the number of options: that option, else checkpoint), see above."""
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
                need = max(option_peak[i, o], run_peak[i, o] + (state[j] if j + 1 < k else 0))
                low = (need + unit // 2) // unit
                spent = (held[i, i + 1] + option_bytes[i, o] + unit // 2) // unit if j > i else 0
                for m in range(max(low, spent), units):
                    rest = best[i + 1, j, m - spent] if j > i else 0
                    time = run_ns[i] + option_ns[i, o] + rest
                    if time < best[i, j, m]:
                        best[i, j, m], choice[i, j, m] = time, o
            for c in range(i + 1, j + 1):
                rerun += run_ns[c - 1]
                spent = (held[i, c] + unit // 2) // unit
                for m in range(spent, units):
                    time = rerun + best[c, j, m - spent] + best[i, c - 1, m]
                    if time < best[i, j, m]:
                        best[i, j, m], choice[i, j, m] = time, options + c
    return best, choice


def instructions(segments: Segments, choice: IntArray, unit: int, memory: int) -> IntArray:
    """What the tables decide for `memory` units: rows (segment, -1) run a segment, (segment, option) its stage."""
    options = segments.option_bytes.shape[1]
    out: list[tuple[int, int]] = []
    # A stack in place of recursion: (i, j, m), or a stage (segment, option, -1).
    stack = [(0, segments.count - 1, memory)]
    while stack:
        i, j, m = stack.pop()
        if m < 0:
            out.append((i, j))
            continue
        if i > j:
            continue
        c = int(choice[i, j, m])
        if c < 0:
            return np.empty((0, 2), np.int64)
        if c < options:
            out.append((i, -1))
            spent = (int(segments.held[i, i + 1]) + int(segments.option_bytes[i, c]) + unit // 2) // unit
            stack.append((i, c, -1))
            if j > i:
                stack.append((i + 1, j, m - spent))
        else:
            at = c - options
            out += [(s, -1) for s in range(i, at)]
            spent = (int(segments.held[i, at]) + unit // 2) // unit
            stack += [(i, at - 1, m), (at, j, m - spent)]
    return np.array(out, np.int64)


@compiled
def expand(
    g: Arrays,
    orders: IntArray,
    codes: IntArray,
    cuts: IntArray,
    stages: IntArray,
    segment: IntArray,
    last: IntArray,
    rank: IntArray,
) -> tuple[IntArray, int]:
    """The sequence of `codes` (see `instructions`); `orders` is the forward, then the backward."""
    size = len(orders)
    for c in range(len(codes)):
        i = codes[c, 0]
        size += cuts[i + 1] - cuts[i]
    steps = np.empty(size, np.int64)
    n, boundary, half = 0, -1, cuts[-1]
    again = np.zeros(len(g.ops), np.int64)
    ran = np.zeros(len(g.ops), np.bool_)
    stack = np.empty(len(g.ops) + 1, np.int64)
    for c in range(len(codes)):
        i, option = codes[c]
        if option < 0:
            for t in range(cuts[i], cuts[i + 1]):
                if g.ops[orders[t], REPEATABLE] or not ran[orders[t]]:
                    steps[n] = orders[t]
                    ran[orders[t]] = True
                    n += 1
            continue
        if boundary < 0:
            boundary = n
        for p in range(half + stages[i + 1], half + stages[i]):
            n = _remake(g, orders[p], i, option, c + 1, steps, n, again, stack, segment, last, rank)
            steps[n] = orders[p]
            n += 1
    if boundary < 0:
        boundary = n
    for p in range(half + stages[0], len(orders)):
        steps[n] = orders[p]
        n += 1
    return drop_dead(g, steps[:n].copy(), boundary)


@compiled
def _remake(
    g: Arrays,
    reader: int,
    i: int,
    option: int,
    stamp: int,
    steps: IntArray,
    n: int,
    again: IntArray,
    stack: IntArray,
    segment: IntArray,
    last: IntArray,
    rank: IntArray,
) -> int:
    """Append to `steps`, `n` long so far, what makes inputs of `reader` that `option` did not save; the new length."""
    depth, first = 1, n
    stack[0] = reader
    while depth > 0:
        depth -= 1
        op = stack[depth]
        for r in range(g.ops[op, READS], g.ops[op, WRITES]):
            s = g.items[r]
            maker = g.storages[s, PRODUCER]
            if segment[s] == i and last[s] <= i and rank[s] <= option and again[maker] != stamp:
                again[maker] = stamp
                stack[depth] = maker
                depth += 1
                k = n  # operators are numbered in an order that respects data flow: keep the new ones sorted
                while k > first and steps[k - 1] > maker:
                    steps[k] = steps[k - 1]
                    k -= 1
                steps[k] = maker
                n += 1
    return n
