"""Cut the forward into segments for the block DP: the cuts, and the bytes held at each of them.

    forward    | F0 | F1 | ... | F(K-1) |        cuts where few bytes cross
    backward                            | stage K-1 | ... | stage 0 |

*Stage* of a step of the backward: the largest segment of which it or a later step reads a value; it never rises,
so encoder memory, masks and other values that are read late do not disturb it.  *Held at k*: values of segments
before `k` that segments or stages from `k` on read.

Values of next to no bytes are left out, as if they were always saved: a scalar made at the end of the forward and
read throughout the backward would put all of the backward into one stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_passes.sequences.profile import END, KEPT, PRODUCER, READS, REPEATABLE, SIZE, TIME, WRITES, Arrays, IntArray

NEGLIGIBLE = 10_000
"""Values smaller than the peak by this factor are left out."""
NARROWEST, WIDEST = 0.5, 1.7
"""Bytes made in a segment, relative to equal segments."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The forward in `count` segments.

    Attributes:
        count: Number of segments.
        forward: Operators of the forward, in order.
        backward: Operators of the backward, in order.
        cuts: Positions in `forward` at which segments start, and its length.
        stages: Positions in `backward`: stage ``k`` is ``[stages[k + 1], stages[k])``.
        segment: Segment of each storage that the DP manages (made by the forward, repeatable, not kept), or -1.
        last: For each storage, the last segment or stage that reads it.
        run_ns: Time of each segment.
        held: ``held[i, k]``: bytes held at `k` but not at `i`.
        state: Bytes of the backward's own state at the start of each stage.
    """

    count: int
    forward: IntArray
    backward: IntArray
    cuts: IntArray
    stages: IntArray
    segment: IntArray
    last: IntArray
    run_ns: IntArray
    held: IntArray
    state: IntArray


def find_cuts(sizes: IntArray, crossing: IntArray, count: int) -> IntArray:
    """Starts of about `count` segments and the end: where few bytes cross, at about equal bytes made.

    Args:
        sizes: Bytes that each forward position makes.
        crossing: ``[t]``: bytes made before `t` that positions from `t` on read.
        count: Wanted number of segments.
    """
    made = np.concatenate([[0], np.cumsum(sizes)])
    target = max(int(made[-1]) // count, 1)
    cuts = [0]
    n = len(sizes)
    # A rest of little more than one segment stays whole, since about `count` are wanted.
    while cuts[-1] < n and made[-1] - made[cuts[-1]] > 1.3 * target:
        base = made[cuts[-1]]
        low = max(int(np.searchsorted(made, base + NARROWEST * target)), cuts[-1] + 1)
        # One position at least, since a single operator may make more than the window.
        high = max(min(int(np.searchsorted(made, base + WIDEST * target, side="right")), n), low + 1)
        if low >= n:
            break
        window = np.arange(low, high)
        # A byte more for every cut: if nothing crosses, the size still decides.
        off = (made[window] - base - target) / target
        cuts.append(int(window[np.argmin((crossing[window] + 1) * (1.0 + 0.5 * off * off))]))
    return np.array([*cuts, n], np.int64)


class Flow:
    """Data shared by all segmentations of one order.

    Attributes:
        sizes: Bytes that each forward position makes.
        crossing: ``[t]``: bytes made before forward position `t` that positions from `t` on read.
        own: Live bytes at each step without the values that segments manage.

    Args:
        g: The problem.
        forward: Operators of the forward, in order.
        backward: Operators of the backward, in order.
        live: Live bytes of the plan that runs both and saves everything.
    """

    def __init__(self, g: Arrays, forward: IntArray, backward: IntArray, live: IntArray) -> None:
        self.g, self.forward, self.backward = g, forward, backward
        n, count = len(forward), len(g.storages)
        made_at, made = _operands(g, forward, WRITES, END)
        size = g.storages[:, SIZE]
        # The DP decides about values that may be recomputed and that the caller does not hold anyway.
        free = (g.ops[g.storages[made, PRODUCER], REPEATABLE] == 1) & (g.storages[made, KEPT] == 0)
        free &= size[made] * NEGLIGIBLE > live.max(initial=0)
        made_at, made = made_at[free], made[free]
        self.maker_at = np.full(count, -1, np.int64)
        self.maker_at[made] = made_at
        managed = self.maker_at >= 0
        read_at, read = _operands(g, forward, READS, WRITES)
        self.forward_reads = read_at[managed[read]], read[managed[read]]
        read_at, read = _operands(g, backward, READS, WRITES)
        self.backward_reads = read_at[managed[read]], read[managed[read]]
        # Bytes that cross each forward position: from after the maker up to the last forward reader.
        last = np.full(count, -1, np.int64)
        np.maximum.at(last, self.forward_reads[1], self.forward_reads[0])
        self.sizes = np.bincount(made_at, size[made], n).astype(np.int64)
        crosses = last[made] > made_at
        delta = np.zeros(n + 2, np.int64)
        np.add.at(delta, made_at[crosses] + 1, size[made[crosses]])
        np.subtract.at(delta, last[made[crosses]] + 1, size[made[crosses]])
        self.crossing = np.cumsum(delta)[: n + 1]
        # Lives of managed values if everything is saved, taken off the live bytes: the rest is there for any plan.
        read_back = np.full(count, -1, np.int64)
        np.maximum.at(read_back, self.backward_reads[1], self.backward_reads[0])
        end = np.maximum(last[made], made_at)
        end = np.maximum(end, np.where(read_back[made] >= 0, n + read_back[made], 0))
        delta = np.zeros(len(live) + 1, np.int64)
        np.add.at(delta, made_at, size[made])
        np.subtract.at(delta, end + 1, size[made])
        self.own = live - np.cumsum(delta)[: len(live)]

    def segments(self, cuts: IntArray) -> Segments:
        """The forward in segments that start at `cuts`, of which the last is the end."""
        g, n = self.g, len(self.forward)
        k = len(cuts) - 1
        which = np.searchsorted(cuts, np.arange(n), side="right") - 1
        segment = np.where(self.maker_at >= 0, which[self.maker_at], -1)
        last = np.full(len(g.storages), -1, np.int64)
        np.maximum.at(last, self.forward_reads[1], which[self.forward_reads[0]])
        stage = np.full(len(self.backward), -1, np.int64)
        np.maximum.at(stage, self.backward_reads[0], segment[self.backward_reads[1]])
        # The suffix maximum: a stage never rises.
        stage = np.maximum.accumulate(stage[::-1])[::-1]
        np.maximum.at(last, self.backward_reads[1], stage[self.backward_reads[0]])
        # stages[k + 1] .. stages[k]: descending stage, so count the positions of larger or equal stage.
        stages = np.array([np.count_nonzero(stage >= i) for i in range(k + 1)], np.int64)
        spent = np.concatenate([[0], np.cumsum(g.ops[self.forward, TIME])])
        # One entry more, so that an empty backward has a state as well.
        own = np.append(self.own[n:], 0)
        return Segments(
            count=k,
            forward=self.forward,
            backward=self.backward,
            cuts=cuts,
            stages=stages,
            segment=segment,
            last=last,
            run_ns=np.diff(spent[cuts]),
            held=_held(k, segment, last, g.storages[:, SIZE]),
            state=own[np.minimum(stages[1:], max(len(self.backward) - 1, 0))],
        )


def _operands(g: Arrays, order: IntArray, begin: int, end: int) -> tuple[IntArray, IntArray]:
    """Positions, and the storages in columns `begin` to `end` of the operators there."""
    low, count = g.ops[order, begin], g.ops[order, end] - g.ops[order, begin]
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(np.arange(len(order)), count), g.items[np.repeat(low, count) + offset]


def _held(count: int, segment: IntArray, last: IntArray, size: IntArray) -> IntArray:
    """``[i, k]``: bytes of segments from `i` on and before `k` that are read from `k` on."""
    # A value of segment g last read in l counts for all i <= g and g < k <= l: mark the corners of that rectangle, then
    # sum along both axes.
    corners = np.zeros((count + 2, count + 2), np.int64)
    stays = (segment >= 0) & (last > segment)
    low, high, size = segment[stays] + 1, last[stays] + 1, size[stays]
    np.add.at(corners[0], low, size)
    np.subtract.at(corners[0], high, size)
    np.subtract.at(corners, (low, low), size)
    np.add.at(corners, (low, high), size)
    return np.cumsum(np.cumsum(corners, axis=0), axis=1)[: count + 1, : count + 1]
