"""One block of the step as a problem of its own: its forward, the rest of the step, and its stage of the backward.

    whole     ... F0 F1 F2 ...... | ...... B2 B1 B0 ...
    block     F0 F1 F2  rest | arrive  B2 B1 B0

Results of other blocks are available at no price: the choice of options for all blocks keeps them alive.  The operator
`rest` stands for the blocks between: it reads the values that they need of this one, and its workspace limits the bytes
that may be saved.  `arrive` makes the gradients with which the stage begins.  Storages are numbered as they are met, so
that identical blocks, such as the layers of a transformer, are equal to the byte, and are solved once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_passes.blocks.segments import Flow, Segments
from remat_passes.sequences.profile import (
    END,
    KEPT,
    MOVABLE,
    PRODUCER,
    READS,
    REPLAY,
    SIZE,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block and its place in the whole problem.

    Attributes:
        g: The block's own problem: operators of the forward, `rest`, `arrive`, operators of the stage.
        ops: Operator of the whole problem for each, -1 for `rest` and `arrive`.
        forward: Number of operators of the forward.
        through_bytes: Bytes of the values that other blocks need of this one.
        state_bytes: Bytes that the backward holds throughout the stage without touching them.
    """

    g: Arrays
    ops: IntArray
    forward: int
    through_bytes: int
    state_bytes: int

    @property
    def key(self) -> bytes:
        """The same for identical blocks."""
        g = self.g
        return b"".join([np.array([self.forward, len(g.storages)]).tobytes(), *(part.tobytes() for part in g[:3])])

    @property
    def steps(self) -> IntArray:
        """Every operator once, in order; the boundary is after `rest`."""
        return np.arange(len(self.ops))

    def limited(self, budget: int, save_bytes: int) -> Arrays:
        """The problem in which a sequence within `budget` saves at most `save_bytes`, for other blocks included."""
        ops = self.g.ops.copy()
        # What is alive while `rest` runs is saved: with this workspace, more than `save_bytes` would exceed the budget.
        ops[self.forward, WORKSPACE] = budget - save_bytes
        return self.g._replace(ops=ops)


class Blocks:
    """Makes the blocks of one segmentation.

    Args:
        g: The whole problem.
        flow: Its order.
        segments: The segments of that order.
    """

    def __init__(self, g: Arrays, flow: Flow, segments: Segments) -> None:
        self.g, self.flow, self.segments = g, flow, segments
        count, end = len(g.storages), len(segments.backward)
        self.made_at, self.read_last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        for p, op in enumerate(segments.backward.tolist()):
            row = g.ops[op]
            self.read_last[g.items[row[READS] : row[WRITES]]] = p
            self.made_at[g.items[row[WRITES] : row[END]]] = p
        # The caller holds gradients to the end.
        self.read_last[(g.storages[:, KEPT] == 1) & (self.made_at >= 0)] = end

    def block(self, i: int) -> Block:
        """Block `i`."""
        s, g = self.segments, self.g
        forward = s.forward[s.cuts[i] : s.cuts[i + 1]]
        low, high = int(s.stages[i + 1]), int(s.stages[i])
        stage = s.backward[low:high]
        # Its own values that others read; then the backward's state at the stage, and the part that the stage reads.
        through = np.flatnonzero((s.segment == i) & (s.last > i))
        around = (self.made_at >= 0) & (self.made_at < low) & (self.read_last >= low)
        touched = {int(v) for op in stage for v in g.items[g.ops[op, READS] : g.ops[op, WRITES]] if around[v]}
        table = _Table(g, self.made_at, s.segment == i, (self.made_at >= 0) & (self.read_last >= high))
        for op in forward:
            table.add(int(op))
        # `rest`, then `arrive`: gradients by the place that makes them, so that equal blocks number them alike.
        table.add_extra(through.tolist(), [])
        table.add_extra([], sorted(touched, key=lambda v: (int(self.made_at[v]), v)))
        for op in stage:
            table.add(int(op))
        sizes = g.storages[:, SIZE]
        return Block(
            table.arrays(),
            np.concatenate([forward, [-1, -1], stage]),
            len(forward),
            int(sizes[through].sum()),
            max(self._own_bytes(low) - int(sizes[list(touched)].sum()), 0),
        )

    def _own_bytes(self, low: int) -> int:
        """Bytes alive just before position `low` of the backward, without those that blocks make."""
        s, g = self.segments, self.g
        if low >= len(s.backward):
            return 0
        # Live bytes at a step include its results and workspace, which are not there before it.
        row = g.ops[s.backward[low]]
        made = int(g.storages[g.items[row[WRITES] : row[END]], SIZE].sum())
        return int(self.flow.own[len(s.forward) + low]) - made - int(row[WORKSPACE])


class _Table:
    """Collects operators under new numbers, and storages as they are met."""

    def __init__(self, g: Arrays, made_at: IntArray, managed: BoolArray, lives_on: BoolArray) -> None:
        self.g, self.made_at, self.managed, self.lives_on = g, made_at, managed, lives_on
        self.ops: list[list[int]] = []
        self.storages: list[list[int]] = []
        self.items: list[int] = []
        self.number: dict[int, int] = {}

    def add(self, op: int) -> None:
        """Add an operator of the whole problem."""
        g = self.g
        row = g.ops[op].tolist()
        reads = [self._storage(v) for v in g.items[row[READS] : row[WRITES]].tolist()]
        # A random state has bytes of its own: the block keeps it from the first execution to the last.
        replay = -1 if row[REPLAY] < 0 else self._storage(row[REPLAY], int(g.storages[row[REPLAY], SIZE]))
        writes = [self._made(v) for v in g.items[row[WRITES] : row[END]].tolist()]
        row[REPLAY] = replay
        # Whatever other blocks read must run at its place: nothing in this block would call for it.
        row[MOVABLE] *= not any(self.storages[v][KEPT] for v in writes)
        self._append(reads, writes, row)

    def add_extra(self, reads: list[int], writes: list[int]) -> None:
        """Add an operator of no cost, which runs once."""
        row = [0] * len(self.g.ops[0])
        row[REPLAY] = -1
        self._append([self._storage(v) for v in reads], [self._made(v) for v in writes], row)

    def _append(self, reads: list[int], writes: list[int], row: list[int]) -> None:
        row[READS] = len(self.items)
        row[WRITES] = row[READS] + len(reads)
        self.items += [*reads, *writes]
        row[END] = len(self.items)
        self.ops.append(row)

    def _storage(self, v: int, size_bytes: int = 0) -> int:
        """New number of a storage that is read; one that nothing here makes is available at no price."""
        if v not in self.number:
            self.number[v] = len(self.storages)
            # Kept, with no producer: there for every read.
            self.storages.append([size_bytes, -1, 1, 0])
        return self.number[v]

    def _made(self, v: int) -> int:
        """New number of a storage that the next operator makes."""
        row = self.g.storages[v].tolist()
        row[PRODUCER] = len(self.ops)
        if self.made_at[v] >= 0:
            # A result of the backward that later stages read lives to the end of the block.
            row[KEPT] = max(row[KEPT], int(self.lives_on[v]))
        elif not self.managed[v]:
            # A result of the forward about which the DP does not decide counts elsewhere, and is always there.
            row[SIZE], row[KEPT] = 0, 1
        self.number.setdefault(v, len(self.storages))
        # Replaces the row that a read has left, or appends.
        self.storages[self.number[v] : self.number[v] + 1] = [row]
        return self.number[v]

    def arrays(self) -> Arrays:
        """The problem."""
        storages = np.array(self.storages, np.int64).reshape(-1, 4)
        return Arrays(np.array(self.ops, np.int64), storages, np.array(self.items, np.int64), 0)
