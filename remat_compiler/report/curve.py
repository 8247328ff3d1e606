"""Live bytes over the modelled time of a step, cut to as many points as a picture has columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable
from remat_compiler.simulate.arrays import IntArray
from remat_compiler.simulate.timeline import MemoryTimeline


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Live bytes over time.

    Attributes:
        total_ns: Length of the step; the number of steps if no times are known.
        boundary_ns: Start of the backward.
        peak_ns: Time at which the peak is first reached.
        peak_bytes: The peak.
        columns: Largest number of live bytes within each of equally long parts of the step.
        timed: Whether the times are known; else every step counts as one.
    """

    total_ns: int
    boundary_ns: int
    peak_ns: int
    peak_bytes: int
    columns: tuple[int, ...]
    timed: bool


@dataclass(frozen=True, slots=True)
class StepCurves:
    """Live bytes of one step, planned and without a budget.

    Attributes:
        planned: Under the plan that is applied.
        before: Without a budget, or `None` where that is not known.
    """

    planned: MemoryCurve
    before: MemoryCurve | None = None


def memory_curve(costs: CostTable, plan: Plan, timeline: MemoryTimeline, num_columns: int = 640) -> MemoryCurve:
    """The curve of `plan`, whose simulation is `timeline`, over at most `num_columns` parts of the step."""
    steps = np.array(plan.steps, np.int64)
    times = np.array(costs.time_ns, np.int64)[steps] if len(steps) else np.zeros(0, np.int64)
    # Without times every step is one unit wide.
    timed = bool(times.sum())
    end = np.cumsum(times if timed else np.ones_like(times))
    start = end - (times if timed else 1)
    total = int(end[-1]) if len(end) else 0
    peak = timeline.peak_step
    return MemoryCurve(
        total_ns=total,
        boundary_ns=int(start[plan.boundary]) if plan.boundary < len(start) else total,
        peak_ns=int(start[peak] + end[peak]) // 2 if len(end) else 0,
        peak_bytes=timeline.peak_bytes,
        columns=_columns(timeline.live_bytes, start, end, total, num_columns),
        timed=timed,
    )


def _columns(
    live: IntArray,
    start: IntArray,
    end: IntArray,
    total: int,
    num_columns: int,
) -> tuple[int, ...]:
    """Largest of `live` over the steps that touch each column; steps without time count where they stand."""
    if not len(live):
        return ()
    edges = [total * i // num_columns for i in range(num_columns + 1)]
    # From the first step that ends at the column's start or later to the last that starts at its end or earlier: closed
    # on both sides, or steps without time would be lost.
    first = np.searchsorted(end, edges[:-1], side="left")
    behind = np.searchsorted(start, edges[1:], side="right")
    return tuple(int(live[a : max(b, a + 1)].max()) for a, b in zip(first.tolist(), behind.tolist()))
