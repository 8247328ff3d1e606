"""Which sizes are worth a variant: the recomputation that the budget costs at each, estimated from one planned problem.

A step at larger sizes under the same budget resembles this step under a budget that is smaller in proportion.  The
estimate only chooses the sizes to compile for; every variant is then planned and checked at its own sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.dynamic_shapes.variant import Use
from remat_compiler.ir.plan import FITTING
from remat_compiler.partition.result import Partition
from remat_compiler.simulate.ends import planned_before_ends
from remat_compiler.simulate.timeline import simulate
from remat_compiler.torch_compat import InputSymbol
from remat_passes.registry import make_planner

GRID = 64
"""Budgets are rounded down to a multiple of the unbudgeted peak over this, so that similar sizes share an estimate."""
CANDIDATES = 8
"""At most so many sizes are considered for a better variant."""
WORTH_IT = 0.02
"""Fraction of the step that a better variant must be expected to save."""
REACH = (2.0, 1.5, 1.25)
"""If no variant fits a call, plan for sizes larger than its own by the first of these factors ..."""
REACH_COST = 0.1
"""... that adds no more than this fraction of the step in recomputation; by the last factor if none does."""
ROOM = (1.25, 1.1)
"""A better variant is planned for sizes larger than the ones seen by the first of these factors that costs little."""


class SizeCostModel:
    """Added time by size of one graph under one budget.

    Args:
        one: The partition at the reference sizes.
        formula: The peak by size of the code compiled for it; without a formula all sizes count as the reference.
        symbols: The symbolic sizes.
        sizes: The reference sizes.
        limit_bytes: The budget.
        planner: Name of the planner.
    """

    def __init__(
        self,
        one: Partition,
        formula: PeakFormula | None,
        symbols: Sequence[InputSymbol],
        sizes: tuple[int, ...],
        limit_bytes: int,
        planner: str,
    ) -> None:
        self._one = one
        self._formula = formula
        self._symbols = symbols
        self._here = 1 if formula is None else max(formula.live_bytes(sizes), 1)
        self._limit = limit_bytes
        # A first quick plan is enough for an estimate, and callers wait for it in the middle of training.
        self._planner = make_planner(planner, time_limit=0.0)
        self._added: dict[int, float] = {}

    def unbudgeted_bytes(self, sizes: Sequence[int]) -> int:
        """The approximate peak without a budget."""
        # The formula is of the compiled code, which may recompute; only its growth is taken from it.
        here = self._one.before.timeline.peak_bytes
        return here if self._formula is None else here * self._formula.live_bytes(sizes) // self._here

    def added_at(self, sizes: Sequence[int]) -> float:
        """Time that recomputation would add, as a fraction of the step; infinite if no plan would fit."""
        reference = max(self.unbudgeted_bytes(sizes), 1)
        if reference <= self._limit:
            return 0.0
        # The larger the peak at these sizes, the smaller the part of it that the budget allows: one plan of the
        # reference problem under that part stands for all sizes of the same part.
        part = self._limit * GRID // reference
        if part not in self._added:
            self._added[part] = self._planned(self._one.before.timeline.peak_bytes * part // GRID)
        return self._added[part]

    def sizes_ahead(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Larger sizes: the largest of `REACH` that are expected to cost little more than `sizes`."""
        larger, most = [self._scaled(sizes, factor) for factor in REACH], self.added_at(sizes) + REACH_COST
        return next((one for one in larger if isfinite(self.added_at(one)) and self.added_at(one) <= most), larger[-1])

    def best(self, uses: Sequence[Use], planned: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...] | None, float]:
        """The sizes whose plan would have saved most so far, and the seconds; `None` if none would.

        Args:
            uses: How the sizes seen were run.
            planned: Sizes that need not be planned for.
        """
        saved_s = {sizes: self.saved_s(uses, sizes) for sizes in self._candidates(uses) if sizes not in planned}
        best = max(saved_s, key=saved_s.__getitem__, default=None)
        return (None, 0.0) if best is None or not saved_s[best] else (best, saved_s[best])

    def saved_s(self, uses: Sequence[Use], sizes: tuple[int, ...]) -> float:
        """Estimated seconds that a plan for `sizes` would have saved so far."""
        then, reach = self.added_at(sizes), self.unbudgeted_bytes(sizes)
        # It would have run the sizes that take no more memory than these, if it were faster there by enough.
        served = [u for u in uses if u.variant.added - then >= WORTH_IT and self.unbudgeted_bytes(u.sizes) <= reach]
        # Of the time that recomputation takes now, the part `then / added` would remain.
        return sum(use.calls * use.added_s * (1.0 - then / use.variant.added) for use in served)

    def _candidates(self, uses: Sequence[Use]) -> list[tuple[int, ...]]:
        """Sizes to plan for: the largest that recompute now and some smaller ones, each with room to grow."""
        slow = sorted((use.sizes for use in uses if use.variant.added), key=self.unbudgeted_bytes)
        # Evenly spread over the calls' sizes, the largest always among them: `- 1` picks the end of each part.
        if len(slow) > CANDIDATES:
            slow = [slow[(i + 1) * len(slow) // CANDIDATES - 1] for i in range(CANDIDATES)]
        return [self._with_room(sizes) for sizes in slow]

    def _with_room(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Somewhat larger sizes if they cost next to nothing, since other sizes nearby will come, too."""
        least = self.added_at(sizes)
        # A variant without any recomputation is worth more than room: with room it must still recompute nothing.
        most = least + WORTH_IT if least else 0.0
        return next((larger for f in ROOM if self.added_at(larger := self._scaled(sizes, f)) <= most), sizes)

    def _scaled(self, sizes: tuple[int, ...], factor: float) -> tuple[int, ...]:
        """The sizes that change, times `factor` up to their upper bounds; the others as they are."""
        # A size that is still that of the first call, as a batch size often is, is not expected to change.
        return tuple(
            n if n == symbol.hint else min(int(factor * n), int(factor * n) if symbol.upper is None else symbol.upper)
            for n, symbol in zip(sizes, self._symbols)
        )

    def _planned(self, budget_bytes: int) -> float:
        """Added time of a plan of the reference problem under this budget; infinite if there is none."""
        problem = replace(self._one.problem, budget_bytes=budget_bytes)
        result = planned_before_ends(problem, self._planner.plan)
        if result.plan is None or result.status not in FITTING:
            return float("inf")
        added = simulate(problem.graph, problem.costs, result.plan).added_ns
        return added / max(problem.costs.step_ns, 1)
