"""Cut the forward into segments for the block DP: where to cut, what each cut holds, and how each segment may save.

    forward    | F0 | F1 | ... | F(K-1) |        cuts where few bytes cross
    backward                            | stage K-1 | ... | stage 0 |

*Stage* of a step of the backward: the largest segment of which it or a later step reads a value; it never rises,
so encoder memory, masks and other values that are read late do not disturb it.  *Held at k*: values of segments
before `k` that segments or stages from `k` on read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_passes.planning.profile import IntArray
from remat_passes.planning.sequence import Order, StepIndex

OPTION_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""Shares of the bytes of a segment's own values that its options do not save."""


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
        option_bytes: ``[i, o]``: bytes that option `o` of segment `i` saves beyond what is held.
        option_ns: Time to make again what option `o` does not save.
        option_peak: Bytes that stage `i` needs beyond what is held at `i`, the backward's own state included.
        dropped: ``[i, storage]`` of an option is true where the storage is not saved.
        run_peak: ``[i, o]``: bytes that running segment `i` needs beyond what is held at `i`.
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
    option_bytes: IntArray
    option_ns: IntArray
    option_peak: IntArray
    run_peak: IntArray
    rank: IntArray
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
    while cuts[-1] < n and made[-1] - made[cuts[-1]] > 1.3 * target:
        base = made[cuts[-1]]
        low = max(int(np.searchsorted(made, base + 0.3 * target)), cuts[-1] + 1)
        high = min(int(np.searchsorted(made, base + 3.0 * target, side="right")), n)
        if high <= low:
            high = low + 1
        if low >= n:
            break
        window = np.arange(low, high)
        off = np.abs(made[window] - base - target) / target
        cuts.append(int(window[np.argmin((crossing[window] + 1) * (1.0 + 0.15 * off))]))
    return np.array([*cuts, n], np.int64)


class _Builder:
    """The quantities of `Segments`, one after another."""

    def __init__(self, index: StepIndex, order: Order, times: list[int], own: IntArray, wanted: int) -> None:
        self.index, self.times, self.own = index, times, own
        self.forward, self.backward = order.forward, order.backward
        self.read_by_backward = {s for op in order.backward for s in index.reads[op]}
        place = {op: t for t, op in enumerate(self.forward)}
        count = len(index.producer)
        self.managed = [p in place and not index.pinned[p] and not index.kept[s] for s, p in enumerate(index.producer)]
        last_read = np.full(count, -1, np.int64)
        for t, op in enumerate(self.forward):
            for s in index.reads[op]:
                last_read[s] = t
        n = len(self.forward)
        sizes, delta = np.zeros(n, np.int64), np.zeros(n + 2, np.int64)
        for t, op in enumerate(self.forward):
            for s in index.writes[op]:
                if self.managed[s]:
                    sizes[t] += index.size_bytes[s]
                    if last_read[s] > t:
                        delta[t + 1] += index.size_bytes[s]
                        delta[last_read[s] + 1] -= index.size_bytes[s]
        self.cuts = find_cuts(sizes, np.cumsum(delta)[: n + 1], wanted)
        self.count = len(self.cuts) - 1
        which = np.searchsorted(self.cuts, np.arange(n), side="right") - 1
        self.segment = np.full(count, -1, np.int64)
        for t, op in enumerate(self.forward):
            for s in index.writes[op]:
                if self.managed[s]:
                    self.segment[s] = which[t]
        self.last = np.full(count, -1, np.int64)
        for t, op in enumerate(self.forward):
            for s in index.reads[op]:
                self.last[s] = max(self.last[s], which[t])
        self._find_stages()

    def _find_stages(self) -> None:
        stage, top = np.full(len(self.backward), -1, np.int64), -1
        for p in range(len(self.backward) - 1, -1, -1):
            for s in self.index.reads[self.backward[p]]:
                top = max(top, int(self.segment[s]))
            stage[p] = top
        self.stage = stage
        for p, op in enumerate(self.backward):
            for s in self.index.reads[op]:
                self.last[s] = max(self.last[s], stage[p])
        # stages[k + 1] .. stages[k]: descending stage, so count the positions of larger or equal stage.
        self.stages = np.array([int((stage >= k).sum()) for k in range(self.count + 1)], np.int64)

    def build(self) -> Segments:
        """All of it."""
        k = self.count
        run_ns = np.zeros(k, np.int64)
        for i in range(k):
            run_ns[i] = sum(self.times[op] for op in self.forward[self.cuts[i] : self.cuts[i + 1]])
        held = np.zeros((k + 1, k + 1), np.int64)
        for s, i in enumerate(self.segment.tolist()):
            if i >= 0 and self.last[s] > i:
                held[: i + 1, i + 1 : self.last[s] + 1] += self.index.size_bytes[s]
        shape = (k, len(OPTION_SHARES))
        values = [np.zeros(shape, np.int64) for _ in range(4)]
        rank = np.zeros(len(self.segment), np.int64)
        spans: dict[int, list[int]] = {}
        for p, op in enumerate(self.backward):
            for s in self.index.reads[op]:
                if self.segment[s] >= 0:
                    spans.setdefault(s, [p, p])[1] = p
        by_segment: list[list[int]] = [[] for _ in range(k)]
        for s in spans:
            by_segment[self.segment[s]].append(s)
        for i in range(k):
            self._options(i, sorted(by_segment[i]), spans, rank, values)
        starts = np.minimum(self.stages[1:], len(self.backward) - 1)
        return Segments(
            count=k,
            forward=np.array(self.forward, np.int64),
            backward=np.array(self.backward, np.int64),
            cuts=self.cuts,
            stages=self.stages,
            segment=self.segment,
            last=self.last,
            run_ns=run_ns,
            held=held,
            option_bytes=values[0],
            option_ns=values[1],
            option_peak=values[2],
            run_peak=values[3],
            rank=rank,
            state=self.own[len(self.forward) + starts],
        )

    def _options(
        self, i: int, read: list[int], spans: dict[int, list[int]], rank: IntArray, values: list[IntArray]
    ) -> None:
        """Fill row `i`: evict the segment's own values in the order of most bytes for the least time."""
        index = self.index
        own = [s for s in read if self.last[s] <= i]
        cost = {s: max(sum(self.times[op] for op in self._closure(i, {s})), 1) for s in own}
        own.sort(key=lambda s: (-index.size_bytes[s] / cost[s], s))
        total = sum(index.size_bytes[s] for s in own)
        dropped: set[int] = set()
        gone, at = 0, 0
        low, high = int(self.stages[i + 1]), int(self.stages[i])
        for o, share in enumerate(OPTION_SHARES):
            while at < len(own) and gone < share * total:
                rank[own[at]] = o
                dropped.add(own[at])
                gone += index.size_bytes[own[at]]
                at += 1
            values[0][i, o] = total - gone
            values[1][i, o] = sum(self.times[op] for op in self._closure(i, dropped))
            delta = np.zeros(high - low + 1, np.int64)
            for s in read:
                first, end = spans[s]
                if end < low:
                    continue
                delta[(max(first, low) - low) if s in dropped else 0] += index.size_bytes[s]
                delta[min(end, high - 1) + 1 - low] -= index.size_bytes[s]
            need = np.cumsum(delta)[:-1] + self.own[len(self.forward) + low : len(self.forward) + high]
            values[2][i, o] = int(need.max()) if high > low else 0
            values[3][i, o] = self._run_peak(i, dropped, set(read))
        for s in own[at:]:
            rank[s] = len(OPTION_SHARES)

    def _run_peak(self, i: int, dropped: set[int], read: set[int]) -> int:
        """Bytes made in segment `i` that are alive at once while it runs."""
        index = self.index
        ops = self.forward[self.cuts[i] : self.cuts[i + 1]]
        end = {}
        for t, op in enumerate(ops):
            for s in index.reads[op]:
                end[s] = t
        delta = np.zeros(len(ops) + 1, np.int64)
        for t, op in enumerate(ops):
            for s in index.writes[op]:
                if self.segment[s] == i:
                    stays = self.last[s] > i or (s in read and s not in dropped)
                    delta[t] += index.size_bytes[s]
                    delta[len(ops) if stays else end.get(s, t) + 1] -= index.size_bytes[s]
        return int(np.cumsum(delta)[:-1].max()) if len(ops) else 0

    def _closure(self, i: int, dropped: set[int]) -> list[int]:
        """Operators of segment `i` that make `dropped` again from what is saved or held."""
        index = self.index
        found: set[int] = set()
        stack = list(dropped)
        while stack:
            op = index.producer[stack.pop()]
            if op in found:
                continue
            found.add(op)
            stack += [
                s
                for s in index.reads[op]
                if self.segment[s] == i and self.last[s] <= i and (s in dropped or s not in self.read_by_backward)
            ]
        return sorted(found)


def cut_into_segments(index: StepIndex, order: Order, times: list[int], live: IntArray, wanted: int) -> Segments:
    """`order` in about `wanted` segments.

    Args:
        index: The graph.
        order: Each operator once.
        times: Time of each operator in ns.
        live: Live bytes of the plan that runs `order` and saves everything.
        wanted: Number of segments.
    """
    builder = _Builder(index, order, times, live.copy(), wanted)
    n = len(live)
    made = {s: t for t, op in enumerate(order.forward) for s in index.writes[op]}
    end = dict(made)
    for t, op in enumerate((*order.forward, *order.backward)):
        for s in index.reads[op]:
            end[s] = t
    delta = np.zeros(n + 1, np.int64)
    for s, t in made.items():
        if builder.managed[s]:
            delta[t] += index.size_bytes[s]
            delta[end[s] + 1] -= index.size_bytes[s]
    builder.own -= np.cumsum(delta)[:n]
    return builder.build()
