"""What the budget costs at other sizes, estimated from the one problem that was planned, and what is worth compiling.

A step at larger sizes under the same budget is much like this step under a budget smaller in proportion.  The estimate
only tells what is worth compiling; what is compiled is planned, and checked, for its own sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from remat_compiler.dry_run.peak_formula import PeakForm
from remat_compiler.dynamic_shapes.variant import Use
from remat_compiler.ir.plan import FITTING
from remat_compiler.partition.result import Partition
from remat_compiler.simulate.timeline import simulate
from remat_compiler.torch_compat import InputSymbol
from remat_passes.registry import make_planner

GRID = 64
"""Budgets are rounded down to this many parts of the peak without one, so that similar sizes share an estimate."""
CANDIDATES = 8
"""Sizes that are considered at most for a better variant."""
WORTH_IT = 0.02
"""Fraction of the step that a better variant must be foreseen to save."""
REACH = (2.0, 1.5, 1.25)
"""How much larger than the sizes at hand those may be that are planned for when nothing fits ..."""
REACH_COST = 0.1
"""... where no more of the step than this is recomputed in addition; else the least of them."""
ROOM = (1.25, 1.1)
"""How much larger than the sizes seen those may be that are planned for."""


class TradeOff:
    """Added time by size of one graph under one budget.

    Args:
        one: What was decided for the sizes at hand.
        form: The peak by size of what was compiled then; without it all sizes are taken for those.
        symbols: The symbolic sizes.
        sizes: The sizes at hand.
        limit_bytes: The budget.
        planner: Name of the planner.
    """

    def __init__(
        self,
        one: Partition,
        form: PeakForm | None,
        symbols: Sequence[InputSymbol],
        sizes: tuple[int, ...],
        limit_bytes: int,
        planner: str,
    ) -> None:
        self._one = one
        self._form = form
        self._symbols = symbols
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

    def beyond(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Larger sizes: as large as cost little more than those at hand, as far as is foreseen."""
        larger, most = [self._scaled(sizes, factor) for factor in REACH], self.added_at(sizes) + REACH_COST
        return next((one for one in larger if isfinite(self.added_at(one)) and self.added_at(one) <= most), larger[-1])

    def best(self, uses: Sequence[Use], planned: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...] | None, float]:
        """The sizes whose plan would have saved most so far, and the seconds; `None` where none would.

        Args:
            uses: How the sizes seen were run.
            planned: Sizes that need not be planned for.
        """
        saved_s = {sizes: self.saved_s(uses, sizes) for sizes in self._candidates(uses) if sizes not in planned}
        best = max(saved_s, key=saved_s.__getitem__, default=None)
        return (None, 0.0) if best is None or not saved_s[best] else (best, saved_s[best])

    def saved_s(self, uses: Sequence[Use], sizes: tuple[int, ...]) -> float:
        """Seconds that a plan for `sizes` would have saved so far, as far as is foreseen."""
        then, reach = self.added_at(sizes), self.reference_bytes(sizes)
        served = [u for u in uses if u.variant.added - then >= WORTH_IT and self.reference_bytes(u.sizes) <= reach]
        return sum(use.calls * use.added_s * (1.0 - then / use.variant.added) for use in served)

    def _candidates(self, uses: Sequence[Use]) -> list[tuple[int, ...]]:
        """Sizes to plan for: of those that recompute now, the largest and some below, with room to grow."""
        slow = sorted((use.sizes for use in uses if use.variant.added), key=self.reference_bytes)
        if len(slow) > CANDIDATES:
            slow = [slow[(i + 1) * len(slow) // CANDIDATES - 1] for i in range(CANDIDATES)]
        return [self._with_room(sizes) for sizes in slow]

    def _with_room(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Somewhat larger sizes where that costs next to nothing: others that are near will come, too.

        Where nothing is to be recomputed at `sizes`, nor is it at the larger ones.
        """
        least = self.added_at(sizes)
        most = least + WORTH_IT if least else 0.0
        return next((larger for f in ROOM if self.added_at(larger := self._scaled(sizes, f)) <= most), sizes)

    def _scaled(self, sizes: tuple[int, ...], factor: float) -> tuple[int, ...]:
        """The sizes that change `factor` times as large, the others as they are."""
        return tuple(
            n if n == symbol.hint else min(int(factor * n), int(factor * n) if symbol.upper is None else symbol.upper)
            for n, symbol in zip(sizes, self._symbols)
        )

    def _planned(self, budget_bytes: int) -> float:
        problem = replace(self._one.problem, budget_bytes=budget_bytes)
        result = self._planner.plan(problem)
        if result.plan is None or result.status not in FITTING:
            return float("inf")
        added = simulate(problem.graph, problem.costs, result.plan).added_ns
        return added / max(problem.costs.step_ns, 1)
