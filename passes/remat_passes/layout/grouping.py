"""Which blocks of a step share an arena: pairs are joined while the peak of the step stays as it is.

At first every block is an arena of its own, and the step peaks as without arenas.  Of all pairs, the one whose union
wastes the least (bytes times moments in which they are not used, or a gain where the two share bytes) is joined, unless
the step would peak higher.  What is left are few arenas, none of which holds memory at the peak that nobody needs.

The size of a union is taken to be its largest live bytes; where packing needs more, the arena is given up, and its
blocks are by themselves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import LayoutProblem
from remat_compiler.simulate.arenas import live_bytes
from remat_passes.layout.portfolio import Portfolio
from remat_passes.layout.units import IntArray
from remat_passes.sequences.jit import compiled, inner

MOST_BLOCKS = 1200
"""The largest blocks are joined, the others are by themselves: work grows with their square."""
_NEVER = 1 << 62


def joined(step: Allocations) -> Arenas:
    """Arenas for the blocks of `step` under which it peaks no higher."""
    chosen = sorted(range(len(step.blocks)), key=lambda i: (-step.blocks[i].size_bytes, i))[:MOST_BLOCKS]
    chosen.sort()
    groups = _groups(step, chosen)
    arena_of, offsets = [-1] * len(step.blocks), [0] * len(step.blocks)
    sizes: list[int] = []
    for group in sorted(set(groups)):
        members = [i for i, number in zip(chosen, groups) if number == group]
        blocks = tuple(step.blocks[i] for i in members)
        layout = Portfolio().place(LayoutProblem(blocks, step.alignment_bytes))
        if len(members) == 1 or layout.total_bytes > _largest_live(step, members):
            continue
        for i, offset in zip(members, layout.offsets):
            arena_of[i], offsets[i] = len(sizes), offset
        sizes.append(layout.total_bytes)
    return Arenas(tuple(sizes), tuple(arena_of), tuple(offsets))


def _largest_live(step: Allocations, members: list[int]) -> int:
    live = np.zeros(len(step.other_bytes), np.int64)
    for i in members:
        live[step.blocks[i].start : step.blocks[i].stop] += step.blocks[i].size_bytes
    return int(live.max(initial=0))


def _groups(step: Allocations, chosen: list[int]) -> list[int]:
    """The number of the group of each chosen block."""
    rows = np.array([(step.blocks[i].start, step.blocks[i].stop, step.blocks[i].size_bytes) for i in chosen], np.int64)
    if not len(rows):
        return []
    groups: list[int] = join(rows, live_bytes(step), step.boundary).tolist()
    return groups


@compiled
def join(rows: IntArray, total: IntArray, boundary: int) -> IntArray:
    """Join groups of blocks; the group of each.

    Args:
        rows: Start, stop and bytes of each block.
        total: Bytes alive at each moment; changed to those with arenas.
        boundary: First moment of the backward.
    """
    n, moments, limit = len(rows), len(total), total.max()
    live, exists = np.zeros((n, moments), np.int64), np.zeros((n, moments), np.bool_)
    # First and last allocation of each group in either graph.
    spans = np.empty((n, 4), np.int64)
    sizes, group = rows[:, 2].copy(), np.arange(n)
    for i in range(n):
        live[i, rows[i, 0] : rows[i, 1]] = rows[i, 2]
        exists[i, rows[i, 0] : rows[i, 1]] = True
        spans[i] = (moments, -1, moments, -1)
        first = 0 if rows[i, 0] < boundary else 2
        spans[i, first] = spans[i, first + 1] = rows[i, 0]
        if first == 0 and rows[i, 1] > boundary:
            # A backward that allocates in the arena of a saved value has it from its begin on.
            spans[i, 2] = boundary
    there, waste = np.ones(n, np.bool_), np.full((n, n), _NEVER, np.int64)
    for i in range(n):
        for j in range(i + 1, n):
            waste[i, j] = joint_waste(live, exists, spans, sizes, i, j)
    best = np.empty(n, np.int64)
    for i in range(n):
        best[i] = waste[i].argmin()
    while True:
        i = -1
        for k in range(n):
            if there[k] and waste[k, best[k]] < _NEVER and (i < 0 or waste[k, best[k]] < waste[i, best[i]]):
                i = k
        if i < 0:
            return group
        j = best[i]
        if not fits(live, exists, spans, sizes, total, limit, i, j):
            waste[i, j] = _NEVER
            best[i] = waste[i].argmin()
            continue
        absorb(live, exists, spans, sizes, total, i, j)
        there[j] = False
        group[group == j] = i
        for k in range(n):
            waste[k, j] = waste[j, k] = _NEVER
            if there[k] and k != i:
                waste[min(i, k), max(i, k)] = joint_waste(live, exists, spans, sizes, min(i, k), max(i, k))
        for k in range(n):
            best[k] = waste[k].argmin()


@inner
def joint_exists(exists: npt.NDArray[np.bool_], spans: IntArray, i: int, j: int) -> npt.NDArray[np.bool_]:
    """Whether the union of two groups exists at each moment."""
    joint: npt.NDArray[np.bool_] = exists[i] | exists[j]
    for first in (0, 2):
        begin, end = min(spans[i, first], spans[j, first]), max(spans[i, first + 1], spans[j, first + 1])
        joint[begin : end + 1] = True
    return joint


@inner
def joint_waste(live: IntArray, exists: npt.NDArray[np.bool_], spans: IntArray, sizes: IntArray, i: int, j: int) -> int:
    """What the union of two groups holds more than they do, in bytes times moments."""
    size = (live[i] + live[j]).max()
    apart: int = sizes[i] * exists[i].sum() + sizes[j] * exists[j].sum()
    together: int = size * joint_exists(exists, spans, i, j).sum()
    return together - apart


@inner
def fits(
    live: IntArray,
    exists: npt.NDArray[np.bool_],
    spans: IntArray,
    sizes: IntArray,
    total: IntArray,
    limit: int,
    i: int,
    j: int,
) -> bool:
    """Whether the step peaks no higher with the union of two groups."""
    size, joint = (live[i] + live[j]).max(), joint_exists(exists, spans, i, j)
    for t in range(len(total)):
        if joint[t] and total[t] - sizes[i] * exists[i, t] - sizes[j] * exists[j, t] + size > limit:
            return False
    return True


@inner
def absorb(
    live: IntArray, exists: npt.NDArray[np.bool_], spans: IntArray, sizes: IntArray, total: IntArray, i: int, j: int
) -> None:
    """Make group `j` part of group `i`."""
    joint = joint_exists(exists, spans, i, j)
    total -= sizes[i] * exists[i] + sizes[j] * exists[j]
    live[i] += live[j]
    sizes[i] = live[i].max()
    exists[i] = joint
    total += sizes[i] * joint
    for first in (0, 2):
        spans[i, first] = min(spans[i, first], spans[j, first])
        spans[i, first + 1] = max(spans[i, first + 1], spans[j, first + 1])
