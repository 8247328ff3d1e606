"""Whether a compiled step fits at given sizes of its inputs: its peak by size, with what operators take inside.

What an operator takes inside is measured on real tensors: sizes are rounded up to a grid, and what was measured there
serves all sizes of the cell below, so that only the first call in a cell waits.  That is sure where an operator takes
no less for larger inputs; where it does (an algorithm chosen by size), it is off by what one operator takes inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_compiler import torch_compat
from remat_compiler.runtime.peak_form import PeakForm
from remat_compiler.runtime.workspace import WorkspaceTable

STEPS_PER_OCTAVE = 4
"""Grid points from a size to its double."""


class PeakGuard:
    """The peak of a compiled step at any sizes.

    Args:
        form: What is alive, as a function of the sizes.
        workspace: Measured workspaces.
        sizes: Sizes to begin with, in the order of the form's symbols: what takes nothing inside at these, nor at
            their doubles, is taken to need no measuring at others.
    """

    def __init__(self, form: PeakForm, workspace: WorkspaceTable, sizes: Sequence[int]) -> None:
        self.form = form
        self._workspace = workspace
        self._taken: dict[tuple[int, ...], tuple[int, ...]] = {}
        here, doubled = (tuple(cell_top(n * factor) for n in sizes) for factor in (1, 2))
        every = range(len(form.calls))
        pairs = zip(every, self._measured(here, sizes), self._measured(doubled, sizes))
        self.form = form.only([i for i, *taken in pairs if any(taken)])

    def peak_bytes(self, sizes: Sequence[int]) -> int | None:
        """The peak at these sizes (in the order of the form's symbols); `None` where nothing is known of them."""
        if not self.form.holds(sizes):
            return None
        if not self.form.calls:
            return self.form.live_bytes(sizes)
        return self.form.peak_bytes(sizes, self._taken_in_cell(sizes).__getitem__)

    def _taken_in_cell(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """What each operator takes inside at most at sizes like these."""
        top = tuple(map(cell_top, sizes))
        if top in self._taken:
            return self._taken[top]
        if torch_compat.profiler_is_running() and self._taken:
            return self._scaled(top)
        self._taken[top] = tuple(self._measured(top, sizes))
        return self._taken[top]

    def _measured(self, top: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """What each operator takes inside at `top`, where it cannot run there at `sizes`; else 0."""
        at_top = self.form.calls_at(top, range(len(self.form.calls)))
        known = self._workspace.resolve(at_top)
        missing = [i for i, call in enumerate(at_top) if call.key not in known]
        exact = dict(zip(missing, self.form.calls_at(sizes, missing)))
        known.update(self._workspace.resolve(exact.values()))
        return [known.get(exact[i].key if i in exact else call.key, 0) for i, call in enumerate(at_top)]

    def _scaled(self, top: tuple[int, ...]) -> tuple[int, ...]:
        """What was measured at the nearest sizes, grown with the square of each size: nothing can be measured now."""
        nearest = min(self._taken, key=lambda at: sum(abs(math.log(n / max(m, 1))) for n, m in zip(top, at)))
        growth = math.prod(max(1.0, n / max(m, 1)) ** 2 for n, m in zip(top, nearest))
        return tuple(math.ceil(taken * growth) for taken in self._taken[nearest])


def cell_top(size: int) -> int:
    """The smallest point of the grid that is not below `size`: whole octaves, and equal steps of ratio between."""
    if size <= 1:
        return size
    step = math.floor(STEPS_PER_OCTAVE * math.log2(size)) - 1
    while round(2 ** (step / STEPS_PER_OCTAVE)) < size:
        step += 1
    return round(2 ** (step / STEPS_PER_OCTAVE))
