"""Whether a compiled step fits at given sizes of its inputs: its peak by size, operator workspace included.

Workspace is measured on real tensors at the very sizes in question: at other sizes an operator may choose another
algorithm, so that smaller sizes may even need more.  The measurement takes about as long as the operators themselves,
once for each combination of sizes.  Operators that had no workspace when they were first measured, as most of a
transformer's, are not measured again: without the others, the peak is a formula alone.

While a profiler runs nothing can be measured; then the workspace at the nearest measured sizes counts, scaled up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.step_model.graph_memory import GraphMemory

MOST_SIZES = 65_536
"""Combinations of sizes whose measurements are kept in memory; when there are more, all are dropped."""


class PeakGuard:
    """The peak of a compiled step at any sizes.

    Args:
        formula: Live bytes as a function of the sizes.
        workspace: Measured workspaces.
        sizes: The first sizes, in the order of the formula's symbols.  An operator without workspace at these and at
            doubled sizes counts as without workspace at all sizes.  (At doubled sizes it is measured only if the
            formula holds there, and its operands are no larger than the live bytes of the step at the first sizes.)
        slack_bytes: What the blocks of a step at these sizes take above what is asked for, or may take, see `DryRun`.
            It grows with the number of large blocks, which is the same at all sizes.
    """

    def __init__(
        self, formula: PeakFormula, workspace: WorkspaceTable, sizes: Sequence[int], slack_bytes: int = 0
    ) -> None:
        self.formula = formula
        self._workspace = workspace
        self._slack_bytes = slack_bytes
        self._first = tuple(sizes)
        self._settled = False
        self._taken: dict[tuple[int, ...], tuple[int, ...]] = {}

    def with_formula(self, formula: PeakFormula) -> PeakGuard:
        """The same for other code of the step, under the conditions of both."""
        conditions = tuple(dict.fromkeys((*formula.conditions, *self.formula.conditions)))
        return PeakGuard(replace(formula, conditions=conditions), self._workspace, self._first, self._slack_bytes)

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int) -> int | None:
        """The peak at these sizes (in the order of the formula's symbols); `None` if the formula does not hold there.

        What is asked for is exact at any sizes, however near to `limit_bytes`; blocks may be larger or smaller than at
        the first sizes.
        """
        return self._peak_bytes(sizes)

    def _peak_bytes(self, sizes: Sequence[int]) -> int | None:
        if not self.formula.holds(sizes):
            return None
        # Never under a profiler: unmeasured workspaces read 0 there, and their operators would be dropped for good.
        if not self._settled and not torch_compat.profiler_is_running():
            self._settle()
        if not self.formula.calls:
            return self.formula.live_bytes(sizes) + self._slack_bytes
        return self.formula.peak_bytes(sizes, self._taken_at(tuple(sizes)).__getitem__) + self._slack_bytes

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak, and the bytes alive between and after the passes; `None` if the formula does not hold there."""
        peak = self._peak_bytes(sizes)
        if peak is None:
            return None
        held, left = self.formula.boundary_and_final_bytes(sizes)
        # The formula has one peak for both passes, so it bounds each of them.
        return GraphMemory(peak, held, peak, left)

    def _settle(self) -> None:
        """Drop operators whose measured workspace is zero at the first and at doubled sizes: not measured again."""
        here, doubled = self._first, tuple(2 * n for n in self._first)
        # The bound keeps the measurement smaller than the step itself; 0 measures nothing at doubled sizes.
        most = self.formula.live_bytes(here) if self.formula.holds(doubled) else 0
        pairs = zip(self.formula.calls, self._measured(here), self._measured(doubled, most))
        # By operator, not by call: one call with workspace shows that the operator may need it elsewhere, too.
        takes = {call.func for call, *taken in pairs if any(taken)}
        self.formula = self.formula.only([i for i, call in enumerate(self.formula.calls) if call.func in takes])
        self._taken.clear()  # by positions in the longer list of calls
        self._settled = True

    def _taken_at(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Workspace bytes of each call of the formula."""
        if sizes in self._taken:
            return self._taken[sizes]
        if torch_compat.profiler_is_running():
            # Not remembered: these are stand-ins, to be replaced once measuring is possible again.
            return self._scaled(sizes) if self._taken else self._measured(sizes)
        if len(self._taken) >= MOST_SIZES:
            self._taken.clear()
        self._taken[sizes] = self._measured(sizes)
        return self._taken[sizes]

    def _measured(self, sizes: Sequence[int], most_bytes: int | None = None) -> tuple[int, ...]:
        """Measured workspace bytes of each call; 0 if it cannot be measured or has operands over `most_bytes`."""
        calls = self.formula.calls_at(sizes, range(len(self.formula.calls)))
        small = [call for call in calls if most_bytes is None or call.argument_bytes <= most_bytes]
        # In memory only: sizes come without end, and the table on disk is one file.
        known = self._workspace.resolve(small, keep=False)
        return tuple(known.get(call.key, 0) for call in calls)

    def _scaled(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The workspace at the nearest measured sizes, scaled by the square of each size that is larger."""
        # Nearest by ratio.  A workspace may grow with the square of a length; at smaller sizes it is not scaled down,
        # since an operator may choose another algorithm there.
        nearest = min(self._taken, key=lambda at: sum(abs(math.log(max(n, 1) / max(m, 1))) for n, m in zip(sizes, at)))
        growth = math.prod(max(1.0, n / max(m, 1)) ** 2 for n, m in zip(sizes, nearest))
        return tuple(math.ceil(taken * growth) for taken in self._taken[nearest])
