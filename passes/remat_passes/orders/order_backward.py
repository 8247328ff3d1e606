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
from remat_passes.orders.separator import lower_peak
from remat_passes.orders.tasks import FIXED, FREE, ORDERED, tasks_of
from remat_passes.sequences.profile import Arrays, IntArray

MAX_TURNS = 60
"""Peaks that one reordering lowers at most."""


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
