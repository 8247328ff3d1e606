"""Coop's recomputable in-place: which input an operator may write its result over.

Source: Zhang et al., *Coop*, NeurIPS 2023, section 3.5.  An operator that may overwrite an input gets its result at the
place of that input, which counts as evicted: where it is needed again, it is remade first.  There the program says
which operators do so (``relu_``).  A captured graph no longer tells, so here it is every operator that could, on an
input of the same size that the program reads no more.
"""

from __future__ import annotations

from remat_passes.eviction.memory import LAST_READ, LOCKS, NEED
from remat_passes.eviction.pool import NONE, rounded
from remat_passes.eviction.room import OVERWRITES, Room
from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import KEPT, PRODUCER, READS, REPEATABLE, SIZE, WORKSPACE, WRITES, Arrays, IntArray


@inner
def is_awaited(g: Arrays, stack: IntArray, at: IntArray, depth: int, storage: int) -> bool:
    """Whether an operator that waits for its inputs has not yet come to `storage` among them."""
    for k in range(depth - 1):
        for i in range(at[k], g.ops[stack[k], WRITES]):
            if g.items[i] == storage:
                return True
    return False


@inner
def may_overwrite(r: Room, storage: int, again: bool, position: int) -> bool:
    """Whether the operator that runs, and has locked `storage`, is the last that the program wants it for."""
    m = r.m
    if m.state[storage, LOCKS] != 1 or m.g.storages[storage, KEPT] or r.chunk[storage] == NONE:
        return False
    # In a repetition, the operator of the program that waits for it may read the storage as well.
    if m.state[storage, LAST_READ] >= position + (0 if again else 1):
        return False
    producer = m.g.storages[storage, PRODUCER]
    return bool(m.g.ops[producer, REPEATABLE]) or m.state[storage, NEED] <= position


@inner
def overwritten(r: Room, op: int, size: int, stack: IntArray, at: IntArray, depth: int, position: int) -> int:
    """The input of `op` in whose place a result of `size` bytes is written; `NONE` if it needs a place of its own."""
    g = r.m.g
    # Kernels that take over an argument's memory say so by a workspace below 0; they are no choice of the planner's.
    if not (r.in_place and r.classes[op, OVERWRITES]) and g.ops[op, WORKSPACE] != -size:
        return NONE
    wanted = rounded(size, r.granularity)
    for i in range(g.ops[op, READS], g.ops[op, WRITES]):
        s = g.items[i]
        if rounded(g.storages[s, SIZE], r.granularity) != wanted or not may_overwrite(r, s, depth > 1, position):
            continue
        if not is_awaited(g, stack, at, depth, s):
            return int(s)
    return NONE
