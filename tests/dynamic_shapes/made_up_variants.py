"""Variants of a graph whose memory is known beforehand, and a provider that hands them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from remat_compiler.dynamic_shapes.variant import Use, Variant
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory

LIMIT = 1_000
WHOLE = Allowance.whole(LIMIT)


@dataclass(frozen=True)
class Proportional:
    """A peak that is proportional to the product of the sizes, and what is held between and left after."""

    bytes_per_unit: int | None
    held: float = 0.0

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int = LIMIT) -> int | None:
        return None if self.bytes_per_unit is None else self.bytes_per_unit * prod(sizes)

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        peak = self.peak_bytes(sizes)
        return None if peak is None else GraphMemory(peak, int(self.held * peak), peak, 0)


def variant(label: str, bytes_per_unit: int, added: float = 0.0) -> Variant:
    """A variant whose peak is proportional to the product of the sizes."""
    return Variant(lambda *arguments: (label, arguments), Proportional(bytes_per_unit), added, (1,), label)


@dataclass
class Prepared:
    """Hands out variants that were made beforehand."""

    needed: list[Variant] = field(default_factory=list)
    better: list[Variant] = field(default_factory=list)
    threshold_s: float = float("inf")
    asked: list[tuple[int, ...]] = field(default_factory=list)
    lost_s: list[float | None] = field(default_factory=list)
    changed: list[Allowance] = field(default_factory=list)

    def variants_for(
        self, sizes: tuple[int, ...], variants: Sequence[Variant], allowance: Allowance
    ) -> Sequence[Variant]:
        self.asked.append(sizes)
        made = [self.needed.pop(0)]
        while self.needed and (made[-1].needed_bytes(sizes, WHOLE) or 0) > LIMIT:
            made.append(self.needed.pop(0))
        return made

    def better_variant(
        self, uses: Sequence[Use], variants: Sequence[Variant], lost_s: float | None, allowance: Allowance
    ) -> Variant | None:
        self.lost_s.append(lost_s)
        return self.better.pop(0) if self.better and lost_s != float("inf") else None

    def after_change(self, variants: Sequence[Variant], before: Allowance, allowance: Allowance) -> Variant | None:
        self.changed.append(allowance)
        return self.better.pop(0) if self.better else None
