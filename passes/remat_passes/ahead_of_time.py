"""Compile the planners' inner loops before anyone waits for them: `python -m remat_passes.ahead_of_time`.

A synthetic step takes the planners through every loop with every kind of argument that a captured step has, and Numba
keeps the code next to the sources (or in ``NUMBA_CACHE_DIR``, or, if neither can be written, in the user's cache
folder).  The code holds for this machine's kind of processor, this Python and this Numba; elsewhere the first plan
compiles.  Building the package runs this module, see ``setup.py``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from remat_compiler.ir.arenas import Allocations
from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.layout import Block, LayoutProblem
from remat_compiler.ir.plan import Tier
from remat_compiler.ir.problem import CostTable, Link, RematProblem
from remat_passes.exact.prove import cheaper_plan
from remat_passes.layout.grouping import joined
from remat_passes.layout.minimise import minimise
from remat_passes.layout.portfolio import Portfolio
from remat_passes.layout.units import Units
from remat_passes.planning.auto import Auto
from remat_passes.planning.capuchin import Capuchin
from remat_passes.planning.coop import Coop
from remat_passes.planning.dtr import Dtr
from remat_passes.planning.home import Home
from remat_passes.planning.save_all import SaveAll

FEW, MANY = 6, 30
"""Blocks of two steps: a small one, and one so large that a climb zooms into regions."""
SECONDS = 0.5
"""The time limit given to `auto` for the larger step, so that it climbs and runs the other planners once."""


def compile_loops() -> float:
    """Run every inner loop once; the seconds that it took, mostly for compiling loops that were not compiled yet."""
    began = time.monotonic()
    for part in (_recompute, _evict_and_move):
        part()
    return time.monotonic() - began


def compile_side_by_side() -> float:
    """`compile_loops` in two processes, which have few loops in common; the code is found by those who come later."""
    began = time.monotonic()
    # No pool: if this process is killed, processes that wait for more work would stay for good.
    parts = [get_context("spawn").Process(target=one, daemon=True) for one in (_recompute, _evict_and_move)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    if failed := [part.exitcode for part in parts if part.exitcode]:
        raise RuntimeError(f"compiling the planners' loops ended with {failed}; the output above says why")
    return time.monotonic() - began


def _recompute() -> None:
    """Run the loops of planners that keep or recompute."""
    small = _tight(FEW)
    # A budget of 0 makes the searches evict, hoist and reorder as far as they can.
    Auto().smallest_peak(small)
    plan = Auto().plan(small).plan
    if plan is not None:
        # The portfolio tries this only with more work than is worth waiting for here.
        cheaper_plan(small, plan, [100], 3_000)
    Auto(time_limit=SECONDS).plan(_tight(MANY))


def _evict_and_move() -> None:
    """Run those of the layout, of evictions while the step runs, and of planners that move values."""
    _pack()
    untried = replace(_step(FEW), budget_bytes=0)
    for planner in (Dtr(), Coop()):
        planner.plan(untried)
    # Its searches compile last, when the other process is likely to have them ready.
    small = _tight(FEW)
    for planner in (Dtr(), Coop()):
        planner.plan(small)
    moving = _with_link(small)
    Auto(effort=100).plan(moving)
    Home(particles=2, turns=1).plan(moving)
    Capuchin().plan(moving)


def _tight(blocks: int) -> RematProblem:
    """A step with a budget halfway between its peak without recomputation and a smallest peak found quickly."""
    step = _step(blocks)
    low, high = Auto(effort=100).smallest_peak(step), SaveAll().plan(step)
    return replace(step, budget_bytes=(low.peak_bytes + high.peak_bytes) // 2)


def _with_link(problem: RematProblem) -> RematProblem:
    """`problem` with a link that is too slow to move all that has to leave."""
    link = Link(Tier.HOST, 10**10, 10**10)
    return replace(problem, costs=replace(problem.costs, links=(link,)), offload_bytes=1 << 40)


def _pack() -> None:
    """Place blocks, and search for a smaller arena than that of blocks one above the other."""
    problem = LayoutProblem((Block(0, 2, 64), Block(1, 3, 64), Block(2, 4, 64)))
    Portfolio().place(problem)
    units = Units.of(problem)
    minimise(units, np.cumsum(units.size) - units.size, 1_000)
    joined(Allocations(problem.blocks, (0,) * 4, 2, problem.alignment_bytes))


class _Writer:
    """Writes a step down, operator by operator."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: list[Storage] = []

    def storage(self, size_bytes: int, kind: StorageKind) -> StorageId:
        new = StorageId(len(self.storages))
        self.storages.append(Storage(new, f"t{new}", size_bytes, kind))
        return new

    def op(self, phase: Phase, reads: list[StorageId], *sizes: int, replay: StorageId | None = None) -> StorageId:
        """An operator with one result for each of `sizes`; the first.  In the backward, further ones are gradients."""
        first = StorageKind.ACTIVATION if phase is Phase.FORWARD else StorageKind.TEMPORARY
        made = [self.storage(size, StorageKind.GRADIENT if i else first) for i, size in enumerate(sizes)]
        new, block = OpId(len(self.ops)), f"block.{len(self.ops) // 5}"
        name = f"op_{new}"
        self.ops.append(
            Op(new, name, "op", phase, tuple(sorted(set(reads))), tuple(made), (name,), replay=replay, module=block)
        )
        return made[0]


def _step(blocks: int) -> RematProblem:
    """Blocks around a stream, each with wide values inside, a random operator, and a mask that needs no tangent."""
    w = _Writer()
    stream, weight = w.storage(8_000, StorageKind.INPUT), w.storage(8_000, StorageKind.PARAMETER)
    inside = []
    for _ in range(blocks):
        wide = w.op(Phase.FORWARD, [stream, weight], 32_000)
        state = w.storage(16, StorageKind.TEMPORARY)
        dropped = w.op(Phase.FORWARD, [w.op(Phase.FORWARD, [wide], 32_000)], 32_000, replay=state)
        inside.append((stream, wide, dropped))
        stream = w.op(Phase.FORWARD, [stream, w.op(Phase.FORWARD, [dropped, weight], 8_000)], 8_000)
    gradient = w.storage(8_000, StorageKind.TANGENT)
    for source, wide, dropped in reversed(inside):
        mask = w.op(Phase.TANGENT_FREE, [wide], 8_000)
        wide_gradient = w.op(Phase.BACKWARD, [gradient, weight, dropped], 32_000, 512)
        wide_gradient = w.op(Phase.BACKWARD, [wide_gradient, mask], 32_000)
        gradient = w.op(Phase.BACKWARD, [gradient, w.op(Phase.BACKWARD, [wide_gradient, source], 8_000, 512)], 8_000)
    time_ns = tuple(100 if len(op.reads) > 1 else 10 for op in w.ops)
    costs = CostTable(time_ns, (0,) * len(w.ops), ("made up",) * len(w.ops))
    return RematProblem(TrainingGraph(tuple(w.ops), tuple(w.storages)), costs, 1 << 60)


if __name__ == "__main__":
    print(f"the planners' loops are compiled ({compile_side_by_side():.0f} s)")
