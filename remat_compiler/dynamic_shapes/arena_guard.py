"""The peak of a step whose values lie in arenas at the sizes that have some, and lie by themselves at all others."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.compilation.arenas_by_size import ArenasBySize
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.dynamic_shapes.peak_guard import PeakGuard
from remat_compiler.step_model.graph_memory import GraphMemory


class ArenaGuard:
    """See `dynamic_shapes.variant.KnownMemory`.

    Args:
        plain: The peak without arenas.
        arenas: The arenas, which may be replaced by larger ones.
    """

    def __init__(self, plain: PeakGuard, arenas: ArenasBySize) -> None:
        self._plain, self._arenas = plain, arenas
        self._placed: tuple[PeakFormula, PeakGuard] | None = None

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int) -> int | None:
        """The peak at these sizes; `None` if the formula does not hold there."""
        return self._at(sizes).peak_bytes(sizes, limit_bytes)

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak, and the bytes alive between and after the passes; `None` if the formula does not hold there."""
        return self._at(sizes).memory(sizes)

    def _at(self, sizes: Sequence[int]) -> PeakGuard:
        formula = self._arenas.formula_at(sizes)
        if formula is None:
            return self._plain
        if self._placed is None or self._placed[0] is not formula:
            self._placed = formula, self._plain.with_formula(formula)
        return self._placed[1]
