"""Blocks placed one after the other, each at the lowest place that is free: by the library omnimalloc, in some orders.

One order takes a second for 20,000 blocks.  Which order is best differs from step to step; these three were the best of
all that the library knows in most of this project's plans.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from omnimalloc import Allocation
from omnimalloc.allocators.greedy import GreedyAllocator

from remat_passes.layout.units import IntArray, Units


def first_fits(units: Units) -> Iterator[IntArray]:
    """The offsets of all blocks, in units, by one order after the other."""
    for order in orders(units):
        yield first_fit(units, order)


def first_fit(units: Units, order: IntArray) -> IntArray:
    """The offsets of all blocks, in units, if they are placed in this order."""
    size, start, stop = units.size.tolist(), units.start.tolist(), units.stop.tolist()
    asked = [Allocation(i, size[i], start[i], stop[i]) for i in order.tolist()]
    offsets = np.zeros(len(units), np.int64)
    for placed in GreedyAllocator().allocate(tuple(asked)):
        # Identifiers may be names, and offsets unknown, elsewhere in the library.
        offsets[int(placed.id)] = placed.offset or 0
    return offsets


def orders(units: Units) -> Iterator[IntArray]:
    """Each order, complete to the last tie, so that the same blocks are placed alike in any process."""
    size, start, life = units.size, units.start, units.stop - units.start
    # The last key is the most important one to numpy.
    yield np.lexsort((start, -size))
    yield np.lexsort((-size, -size * _met(units)))
    yield np.lexsort((-life, -size))


def _met(units: Units) -> IntArray:
    """How many blocks each block meets, itself included."""
    begun = np.searchsorted(np.sort(units.start), units.stop)
    ended = np.searchsorted(np.sort(units.stop), units.start, "right")
    return begun - ended
