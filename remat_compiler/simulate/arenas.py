"""A step whose allocations lie in arenas: what is alive at each moment, and defects of arenas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import Block, Layout, LayoutProblem
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace
from remat_compiler.simulate.verify_layout import layout_defects


def live_bytes(step: Allocations) -> npt.NDArray[np.int64]:
    """Bytes alive at each moment if every block is by itself."""
    total = np.array(step.other_bytes, np.int64)
    for block in step.blocks:
        total[block.start : block.stop] += block.size_bytes
    return total


def live_bytes_with(step: Allocations, arenas: Arenas) -> npt.NDArray[np.int64]:
    """Bytes alive at each moment with arenas, which count as long as they exist."""
    total = np.array(step.other_bytes, np.int64)
    for block, arena in zip(step.blocks, arenas.arena_of):
        if arena < 0:
            total[block.start : block.stop] += block.size_bytes
    for arena, size_bytes in enumerate(arenas.sizes):
        total[_exists(step, arenas, arena)] += size_bytes
    return total


def arena_lives(step: Allocations, arenas: Arenas, arena: int) -> list[Life]:
    """An arena as allocations: more than one if nothing holds it between forward and backward."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], _exists(step, arenas, arena).astype(np.int8), [0]))))
    return [Life(arenas.sizes[arena], int(made), int(freed)) for made, freed in zip(edges[::2], edges[1::2])]


def trace_with(trace: AllocationTrace, step: Allocations, arenas: Arenas) -> AllocationTrace:
    """`trace`, that of `step` or of the same step at smaller sizes, with arenas in place of what lies in them."""
    gone = {position for position, arena in zip(step.in_trace, arenas.arena_of) if arena >= 0}
    lives = [life for position, life in enumerate(trace.lives) if position not in gone]
    for arena in range(len(arenas.sizes)):
        lives += arena_lives(step, arenas, arena)
    # Stable: what is made at one moment stays in its order, and arenas come after it.
    return replace(trace, lives=tuple(sorted(lives, key=lambda life: life.made)))


def arena_defects(step: Allocations, arenas: Arenas) -> list[str]:
    """One sentence for each defect; arenas with a defect are never used."""
    if not len(arenas.arena_of) == len(arenas.offsets) == len(step.blocks):
        return [f"{len(arenas.arena_of)} arenas and {len(arenas.offsets)} offsets for {len(step.blocks)} blocks"]
    found = [
        f"block {i} is in arena {arena}, which does not exist"
        for i, arena in enumerate(arenas.arena_of)
        if not -1 <= arena < len(arenas.sizes)
    ]
    for arena, size_bytes in enumerate(arenas.sizes):
        members = arenas.members(arena)
        problem = LayoutProblem(tuple(step.blocks[i] for i in members), step.alignment_bytes)
        layout = Layout("arena", tuple(arenas.offsets[i] for i in members), size_bytes)
        found += [f"arena {arena}: {defect}" for defect in layout_defects(problem, layout)]
    return found


def _exists(step: Allocations, arenas: Arenas, arena: int) -> npt.NDArray[np.bool_]:
    """Whether an arena exists at each moment.

    A graph that allocates in it keeps it from its first allocation there to its last, a backward that finds saved
    values in it from its begin on; blocks keep it as long as they live.
    """
    blocks: Sequence[Block] = [step.blocks[i] for i in arenas.members(arena)]
    moments = len(step.other_bytes)
    exists = np.zeros(moments, np.bool_)
    for first, last in ((0, step.boundary), (step.boundary, moments)):
        made = [block.start for block in blocks if first <= block.start < last]
        saved = first and any(block.start < first < block.stop for block in blocks)
        if made:
            exists[first if saved else min(made) : max(made) + 1] = True
    for block in blocks:
        exists[block.start : block.stop] = True
    return exists
