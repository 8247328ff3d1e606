"""What the budget costs at other sizes, estimated from the one problem that was planned.

A step at larger sizes under the same budget is much like this step under a budget smaller in proportion.  The estimate
only tells what is worth compiling; what is compiled is planned, and checked, for its own sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.cutter import FITTING
from remat_compiler.partition import Partition
from remat_compiler.runtime.peak_form import PeakForm
from remat_compiler.simulate.timeline import simulate
from remat_passes.registry import make_planner

GRID = 64
"""Budgets are rounded down to this many parts of the peak without one, so that similar sizes share an estimate."""


class TradeOff:
    """Added time by size of one graph under one budget.

    Args:
        one: What was decided for the sizes at hand.
        form: The peak by size of what was compiled then; without it all sizes are taken for those.
        sizes: Those sizes.
        limit_bytes: The budget.
        planner: Name of the planner.
    """

    def __init__(
        self, one: Partition, form: PeakForm | None, sizes: tuple[int, ...], limit_bytes: int, planner: str
    ) -> None:
        self._one = one
        self._form = form
        self._here = 1 if form is None else max(form.live_bytes(sizes), 1)
        self._limit = limit_bytes
        self._planner = make_planner(planner, time_limit=0.0)
        self._added: dict[int, float] = {}

    def reference_bytes(self, sizes: Sequence[int]) -> int:
        """The peak without a budget, about."""
        here = self._one.before.timeline.peak_bytes
        return here if self._form is None else here * self._form.live_bytes(sizes) // self._here

    def added_at(self, sizes: Sequence[int]) -> float:
        """Time that recomputation would add, as a fraction of the step; infinite where no plan would fit."""
        reference = max(self.reference_bytes(sizes), 1)
        if reference <= self._limit:
            return 0.0
        part = self._limit * GRID // reference
        if part not in self._added:
            self._added[part] = self._planned(self._one.before.timeline.peak_bytes * part // GRID)
        return self._added[part]

    def _planned(self, budget_bytes: int) -> float:
        problem = replace(self._one.cut.problem, budget_bytes=budget_bytes)
        result = self._planner.plan(problem)
        if result.plan is None or result.status not in FITTING:
            return float("inf")
        added = simulate(problem.graph, problem.costs, result.plan).added_ns
        return added / max(problem.costs.step_ns, 1)
