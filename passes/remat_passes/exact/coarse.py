"""Merged stages: a relaxation of the space whose optimum is a lower bound, and which can be refined until it is exact.

A *window* is a run of stages.  A window of one stage keeps all its rows.  A longer one has one gap without capacity
before all its anchors, and only the capacity of its last anchor:

    stages     t1 | t2 | t3 | t4        capacity in each gap and at each anchor
    window     t1   t2   t3   t4 |      capacity at t4 for all that is alive there

Every plan of the space stands for a solution of the merged program that costs no more: its executions in each window,
in any order, and the storages alive at the windows' ends.  With one window this is the bound of a single instant; with
windows of one stage each it is the whole program.  The states between windows are integral, which bounds from the
linear relaxation of the whole program lack: there, a fraction of every value is retained.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from remat_passes.exact.space import Space, Stage


def merge(space: Space, starts: Sequence[int]) -> Space:
    """`space` with windows that begin at `starts`, ascending from 0."""
    ends = [*starts[1:], len(space.stages)]
    window = [bisect_right(starts, t) - 1 for t in range(len(space.stages))]
    stages = tuple(_window(space, start, end) for start, end in zip(starts, ends))
    made_at = {op: window[t] if t >= 0 else -1 for op, t in space.made_at.items()}
    entry = [window[t] if t >= 0 else -1 for t in space.entry]
    # Made by an anchor of the window in which they are first alive: free there, since the one gap stands before it.
    born = frozenset(v for v, t in enumerate(entry) if t >= 0 and made_at.get(space.index.producer[v], -1) == t)
    return replace(
        space,
        stages=stages,
        entry=tuple(entry),
        last=tuple(window[t] if t >= 0 else -1 for t in space.last),
        runs_until={op: window[t] for op, t in space.runs_until.items()},
        made_at=made_at,
        born=born,
    )


def _window(space: Space, start: int, end: int) -> Stage:
    """Stages from `start` to before `end` as one."""
    merged = space.stages[start:end]
    if len(merged) == 1:
        return merged[0]
    # Operators that the window executes at an anchor are left out: their results are born in it.
    candidates = {i for stage in merged for i in stage.candidates if not start <= space.made_at.get(i, -1)}
    return Stage(
        anchors=tuple(anchor for stage in merged for anchor in stage.anchors),
        candidates=tuple(sorted(candidates)),
        base_bytes=merged[-1].base_bytes,
        # When in the window an execution happens is open, so a capacity in the gap would cut off plans.
        gap_limited=False,
        anchor_limited=merged[-1].anchor_limited,
    )
