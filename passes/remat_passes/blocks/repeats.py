"""Cut the forward so that repeated parts, such as the layers of a transformer, become identical blocks.

    operators    e0 e1 | a b c d  a b c d  a b c d | h0 h1
    period 4     ^-- another --^  ^- copies of one -^  ^-- another

A run of operators repeats with period `L` if each has the same times and sizes as the one `L` places on; later, blocks
are compared in full.  The longest run is found first, then those before and after it.  Within a
period the cut goes where the fewest bytes cross; a period of many bytes is cut further, the same way in each copy, and
several periods of few bytes become one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat_passes.blocks.segments import find_cuts
from remat_passes.sequences.profile import END, READS, REPEATABLE, SIZE, TIME, WORKSPACE, WRITES, Arrays, IntArray

SHORTEST = 4
"""Operators of the shortest period."""
AS_LONG = 0.95
"""The shortest period wins among those that cover at least this part of the operators that the best one covers."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Operators at ``[start, stop)`` of an order that repeat with `period`; a period of 0 means that they do not."""

    start: int
    stop: int
    period: int


def labels_of(g: Arrays, order: IntArray) -> IntArray:
    """For each operator of `order` a number; operators of the same costs and sizes have the same."""
    numbers: dict[tuple[int, ...], int] = {}
    labels = np.empty(len(order), np.int64)
    for t, op in enumerate(order.tolist()):
        row = g.ops[op]
        reads, writes = g.items[row[READS] : row[WRITES]], g.items[row[WRITES] : row[END]]
        key = (
            *(int(row[column]) for column in (TIME, WORKSPACE, REPEATABLE)),
            len(reads),
            *g.storages[reads, SIZE].tolist(),
            *g.storages[writes, SIZE].tolist(),
        )
        labels[t] = numbers.setdefault(key, len(numbers))
    return labels


def find_repeats(labels: IntArray) -> list[Repeat]:
    """`labels` in runs, in order, that cover them all."""
    found: list[Repeat] = []
    stack = [(0, len(labels))]
    while stack:
        start, stop = stack.pop()
        if start >= stop:
            continue
        run = _longest(labels, start, stop)
        found.append(run)
        # The longest run divides the rest in two, each with repetitions of its own.
        if run.period:
            stack += [(start, run.start), (run.stop, stop)]
    return sorted(found, key=lambda run: run.start)


def _longest(labels: IntArray, start: int, stop: int) -> Repeat:
    """The run of repeated labels in ``[start, stop)`` that covers most; one without period if nothing repeats."""
    part = labels[start:stop]
    best: list[tuple[int, int, int]] = []
    for period in range(SHORTEST, len(part) // 2 + 1):
        # Between two places that differ, every label equals the one a period later.
        differs = np.flatnonzero(part[:-period] != part[period:])
        edges = np.concatenate([[-1], differs, [len(part) - period]])
        lengths = np.diff(edges) - 1
        at = int(np.argmax(lengths))
        # At least two whole periods; the last one has no successor to compare with, hence `+ period`.
        if lengths[at] >= period:
            best.append((int(lengths[at]) + period, period, int(edges[at]) + 1))
    if not best:
        return Repeat(start, stop, 0)
    # A multiple of the true period covers about as much, but its blocks would hold several layers.
    most = max(best)[0]
    covered, period, first = min((one for one in best if one[0] >= AS_LONG * most), key=lambda one: one[1])
    return Repeat(start + first, start + first + covered, period)


def aligned_cuts(sizes: IntArray, crossing: IntArray, runs: list[Repeat], count: int) -> IntArray:
    """Starts of about `count` blocks and the end, see `find_cuts`; copies of a repeated part are cut alike."""
    target = max(int(sizes.sum()) // max(count, 1), 1)
    cuts: set[int] = {0, len(sizes)}
    for run in runs:
        cuts |= set(_within(run, sizes, crossing, target))
    return np.array(sorted(cuts), np.int64)


def _within(run: Repeat, sizes: IntArray, crossing: IntArray, target: int) -> Iterator[int]:
    """Cuts of one run."""
    if not run.period:
        yield from _plain(run.start, run.stop, sizes, crossing, target)
        return
    copies = (run.stop - run.start) // run.period
    phases = crossing[run.start : run.start + copies * run.period].reshape(copies, run.period)
    # The first copy's beginning is often not one of the others': what it reads was made elsewhere.
    first = run.start + int(np.argmin(phases[1:].sum(axis=0)))
    starts = range(first, run.stop - run.period + 1, run.period)
    made = int(sizes[first : first + run.period].sum())
    inside = [0, *_plain(0, run.period, sizes[first:], crossing[first:], target)]
    # Layers smaller than the target share a block.
    together = max(round(target / max(made, 1)), 1)
    yield from _plain(run.start, first, sizes, crossing, target)
    for start in starts[::together]:
        yield from (start + at for at in inside)
    end = starts[-1] + run.period
    yield end
    yield from _plain(end, run.stop, sizes, crossing, target)


def _plain(start: int, stop: int, sizes: IntArray, crossing: IntArray, target: int) -> Iterator[int]:
    """Cuts of ``[start, stop)`` at which few bytes cross, none at all if it makes next to nothing."""
    made = int(sizes[start:stop].sum())
    # A scrap this small joins its neighbour.
    if 2 * made < target:
        return
    cuts = find_cuts(sizes[start:stop], crossing[start : stop + 1], max(round(made / target), 1))
    yield from (start + int(at) for at in cuts[:-1])
