"""Reorder the backward of a plan so that its peak falls, by minimum cuts (see `separator`).

    plan       f0 f1 | b1 w1 b0 w0        w: gradients of weights, larger than what they are made from
    reordered  f0 f1 | b1 b0 w0 w1        the same steps, the same instance for every read, a lower peak

The steps after the boundary move, repetitions included, so the added time stays.  The peak is never higher.
Operators that draw random numbers, communicate or have other effects keep their order among themselves, and no step
passes one that changes memory in place.
"""

from __future__ import annotations

import numpy as np

from remat_compiler.ir.graph import TrainingGraph, Trait
from remat_passes.orders.separator import Tasks, lower_peak
from remat_passes.sequences.profile import (
    END,
    KEPT,
    READS,
    REPLAY,
    SIZE,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
)

MAX_TURNS = 60
"""Peaks that one reordering lowers at most."""
FREE, ORDERED, FIXED = range(3)
"""How an operator may move: anywhere; not past others that are ordered; not at all."""


def freedom_of(graph: TrainingGraph) -> IntArray:
    """How each operator may move: FREE, ORDERED or FIXED."""
    return np.array(
        [FIXED if Trait.MUTATING in op.traits else ORDERED if op.traits else FREE for op in graph.ops], np.int64
    )


def reorder(g: Arrays, freedom: IntArray, steps: IntArray, boundary: int, target: int) -> tuple[IntArray, int]:
    """`steps` with those from `boundary` on in an order of lower peak, and the work done."""
    tasks = tasks_of(g, freedom, steps, boundary)
    order, _, work = lower_peak(tasks, np.arange(len(steps) - boundary), target, MAX_TURNS)
    return np.concatenate([steps[:boundary], steps[boundary + order]]), work + 2 * len(steps)


def tasks_of(g: Arrays, freedom: IntArray, steps: IntArray, boundary: int) -> Tasks:
    """The steps from `boundary` on as tasks; the values are instances of storages, and random states to be replayed."""
    n = len(steps)
    made_at, made = _expand(g, steps, WRITES, END)
    read_at, read = _expand(g, steps, READS, WRITES)
    # Instances sorted by storage, then step, so that the next instance of a storage is the next row.
    order = np.argsort(made * n + made_at, kind="stable")
    made_at, made = made_at[order], made[order]
    # A read means the latest instance; of a kept storage, the first.
    kept = g.storages[:, KEPT] == 1
    value = np.searchsorted(made * n + made_at, read * n + np.where(kept[read], 0, read_at)) - ~kept[read]
    is_next = np.append(False, (made[1:] == made[:-1]))
    next_at = np.append(np.where(is_next[1:] & ~kept[made[:-1]], made_at[1:], -1), -1)  # where it is replaced, or -1
    first_at = np.full(len(g.ops), n)
    np.minimum.at(first_at, steps, np.arange(n))
    # Executions of one operator keep their order: the first one may be special (kept results, random state).
    by_op = np.argsort(steps, kind="stable")
    repeated = steps[by_op[1:]] == steps[by_op[:-1]]
    # Repetitions replay recorded states and have no effects, so only first executions are tied.
    tied = np.flatnonzero((freedom[steps] != FREE) & (first_at[steps] == np.arange(n)))
    # Pairs: a reader after the maker; the next instance after all readers of this one, which else would read that
    # one; executions of one operator; tied operators.  A -1 falls before the boundary, and is left out by `behind`.
    later = [read_at, next_at[value], by_op[1:][repeated], tied[1:]]
    earlier = [made_at[value], read_at, by_op[:-1][repeated], tied[:-1]]
    # Random states: made by a first execution, read by the others, which hold the generator's own state meanwhile.
    replays = np.flatnonzero((g.ops[steps, REPLAY] >= 0) & (first_at[steps] < np.arange(n)))
    drawn, state = np.unique(steps[replays], return_inverse=True)
    own, state_size = g.ops[steps, WORKSPACE], g.storages[g.ops[drawn, REPLAY], SIZE]
    own[replays] += state_size[state]
    return behind(
        boundary,
        own=own,
        fixed=freedom[steps] == FIXED,
        size=np.concatenate([g.storages[made, SIZE], state_size]),
        made_at=np.concatenate([made_at, first_at[drawn]]),
        kept=np.concatenate([kept[made] & ~is_next, np.zeros(len(drawn), np.bool_)]),
        reads=(np.concatenate([value, len(made) + state]), np.concatenate([read_at, replays])),
        pairs=(np.concatenate(later), np.concatenate(earlier)),
        base=g.tangent_bytes,
    )


def behind(
    boundary: int,
    *,
    own: IntArray,
    fixed: BoolArray,
    size: IntArray,
    made_at: IntArray,
    kept: BoolArray,
    reads: tuple[IntArray, IntArray],
    pairs: tuple[IntArray, IntArray],
    base: int,
) -> Tasks:
    """Tasks from position `boundary` on.

    Args:
        boundary: First position that counts.
        own: As in `Tasks`, by position; so is `fixed`.
        fixed: See `own`.
        size: As in `Tasks`, by value; so is `kept`.
        made_at: Position at which each value is made; if before `boundary`, the value exists from the start.
        kept: See `size`.
        reads: Values and the positions at which they are read.
        pairs: Positions, and positions that must run before them.
        base: As in `Tasks`.
    """
    value, read_at = (part[reads[1] >= boundary] for part in reads)
    # Values that the forward makes and reads up by itself are not part of the tasks.
    alive = kept | (made_at >= boundary)
    alive[value] = True
    rank = np.cumsum(alive) - 1
    order = np.argsort(value, kind="stable")
    start = np.zeros(int(alive.sum()) + 1, np.int64)
    np.cumsum(np.bincount(rank[value], minlength=len(start) - 1), out=start[1:])
    inside = (pairs[0] >= boundary) & (pairs[1] >= boundary)
    return Tasks(
        own=own[boundary:],
        size=size[alive],
        maker=np.maximum(made_at[alive] - boundary, -1),
        kept=kept[alive],
        start=start,
        readers=read_at[order] - boundary,
        later=pairs[0][inside] - boundary,
        earlier=pairs[1][inside] - boundary,
        fixed=fixed[boundary:],
        base=base,
    )


def _expand(g: Arrays, steps: IntArray, begin: int, end: int) -> tuple[IntArray, IntArray]:
    """Steps, and the storages in columns `begin` to `end` of their operators, in order."""
    low, count = g.ops[steps, begin], g.ops[steps, end] - g.ops[steps, begin]
    # 0, 1, 2, ... within each step: positions less the number of items of all steps before.
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(np.arange(len(steps)), count), g.items[np.repeat(low, count) + offset]
