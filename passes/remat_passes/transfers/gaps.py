"""The gaps of a plan: from one use of an instance to its next read.  In a gap the instance may be off the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import StorageKind, TrainingGraph
from remat_compiler.simulate.arrays import GraphArrays, IntArray, expand
from remat_compiler.simulate.timeline import find_instances


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Gaps of at least one step, by storage, then begin.

    Attributes:
        storage: Storage of each.
        size_bytes: Its bytes.
        made: The step that makes the instance.
        first: First step of the gap.
        read: The step that ends it, which reads the instance.
    """

    storage: IntArray
    size_bytes: IntArray
    made: IntArray
    first: IntArray
    read: IntArray

    def moved_in(self, chosen: Sequence[int], live_bytes: IntArray) -> IntArray:
        """Live bytes at each step if something is off the device throughout each chosen gap."""
        live: IntArray = live_bytes.copy()
        for gap in chosen:
            live[self.first[gap] : self.read[gap]] -= self.size_bytes[gap]
        return live


def movable_storages(graph: TrainingGraph) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each storage, whether it may be off the device: nobody else holds it, and it is no random state."""
    states = {op.replay for op in graph.ops}
    kinds = (StorageKind.ACTIVATION, StorageKind.TEMPORARY)
    return np.array([s.kind in kinds and s.id not in states and s.size_bytes > 0 for s in graph.storages], np.bool_)


def gaps_of(graph: TrainingGraph, arrays: GraphArrays, steps: IntArray) -> Gaps:
    """The gaps of a plan in which something may be off the device."""
    movable = movable_storages(graph)
    lives = find_instances(arrays, steps)
    read_step, read_storage = expand(arrays.read_start, arrays.read_items, steps)
    wanted = movable[read_storage]
    read_step, read_storage = read_step[wanted], read_storage[wanted]
    order = np.lexsort((read_step, read_storage))
    read_step, read_storage = read_step[order], read_storage[order]
    # The instance that each read means: the last one of its storage that was made before.
    n = len(steps)
    owner = np.searchsorted(lives.storage * n + lives.start, read_storage * n + read_step, side="left") - 1
    made = lives.start[owner]
    # The use before: the read before of the same instance, or the step that makes it.
    before = made.copy()
    same = (owner[1:] == owner[:-1]) if len(owner) else np.zeros(0, np.bool_)
    before[1:][same] = read_step[:-1][same]
    long = read_step - before > 1
    storage = read_storage[long]
    return Gaps(storage, arrays.size_bytes[storage], made[long], before[long] + 1, read_step[long])
