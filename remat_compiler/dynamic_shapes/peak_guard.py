"""Whether a compiled step fits at given sizes of its inputs: its peak by size, with what operators take inside.

What an operator takes inside is measured on real tensors, at the very sizes that are asked for: other sizes may have
it take another algorithm, and smaller ones so more.  That takes about as long as the operators themselves, once for
each combination of sizes.  Operators of which none took anything where they were looked at first, as those of most
transformers, are not measured again: their peak is a formula alone.

While a profiler runs nothing can be measured; what was measured at the nearest sizes counts then, grown with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.peak_formula import PeakForm
from remat_compiler.simulate.step_peak import GraphMemory

MOST_SIZES = 65_536
"""Combinations of sizes whose measurements are remembered; beyond, all are forgotten."""


class PeakGuard:
    """The peak of a compiled step at any sizes.

    Args:
        form: What is alive, as a function of the sizes.
        workspace: Measured workspaces.
        sizes: Sizes to begin with, in the order of the form's symbols: operators that take nothing inside at these,
            nor at their doubles (where the form holds there, and operands are no larger than the step at hand), are
            taken to do so at no others.
    """

    def __init__(self, form: PeakForm, workspace: WorkspaceTable, sizes: Sequence[int]) -> None:
        self.form = form
        self._workspace = workspace
        self._first = tuple(sizes)
        self._settled = False
        self._taken: dict[tuple[int, ...], tuple[int, ...]] = {}

    def peak_bytes(self, sizes: Sequence[int]) -> int | None:
        """The peak at these sizes (in the order of the form's symbols); `None` where nothing is known of them."""
        if not self.form.holds(sizes):
            return None
        if not self._settled and not torch_compat.profiler_is_running():
            self._settle()
        if not self.form.calls:
            return self.form.live_bytes(sizes)
        return self.form.peak_bytes(sizes, self._taken_at(tuple(sizes)).__getitem__)

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak at these sizes and what is alive between and after; `None` where nothing is known of them."""
        peak = self.peak_bytes(sizes)
        if peak is None:
            return None
        held, left = self.form.resting_bytes(sizes)
        return GraphMemory(peak, held, peak, left)

    def _settle(self) -> None:
        """Leave out the operators that take nothing."""
        here, doubled = self._first, tuple(2 * n for n in self._first)
        most = self.form.live_bytes(here) if self.form.holds(doubled) else 0
        pairs = zip(self.form.calls, self._measured(here), self._measured(doubled, most))
        takes = {call.func for call, *taken in pairs if any(taken)}
        self.form = self.form.only([i for i, call in enumerate(self.form.calls) if call.func in takes])
        self._taken.clear()
        self._settled = True

    def _taken_at(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """What each operator takes inside."""
        if sizes in self._taken:
            return self._taken[sizes]
        if torch_compat.profiler_is_running():
            return self._scaled(sizes) if self._taken else self._measured(sizes)
        if len(self._taken) >= MOST_SIZES:
            self._taken.clear()
        self._taken[sizes] = self._measured(sizes)
        return self._taken[sizes]

    def _measured(self, sizes: Sequence[int], most_bytes: int | None = None) -> tuple[int, ...]:
        """The same, measured; 0 for what cannot be, and for operands of more than `most_bytes`."""
        calls = self.form.calls_at(sizes, range(len(self.form.calls)))
        small = [call for call in calls if most_bytes is None or call.argument_bytes <= most_bytes]
        known = self._workspace.resolve(small, keep=False)
        return tuple(known.get(call.key, 0) for call in calls)

    def _scaled(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """What was measured at the nearest sizes, grown with the square of each size."""
        nearest = min(self._taken, key=lambda at: sum(abs(math.log(max(n, 1) / max(m, 1))) for n, m in zip(sizes, at)))
        growth = math.prod(max(1.0, n / max(m, 1)) ** 2 for n, m in zip(sizes, nearest))
        return tuple(math.ceil(taken * growth) for taken in self._taken[nearest])
