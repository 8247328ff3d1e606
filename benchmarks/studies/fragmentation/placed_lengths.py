"""Steps of several lengths in a row, which one code runs: what is reserved for them, with arenas for the longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from instruments.layout_problems import SCALED_PEAK
from remat_compiler.simulate.lives import Life
from studies.fragmentation.emitted_steps import EmittedStep
from studies.fragmentation.fragmentation_tables import KINDS, LengthsRow, Reserved
from studies.fragmentation.placed_steps import PlacedStep, alive_bytes, arenas_throughout, chosen_arenas, reserved

ORDERS = 20
"""Further orders of the lengths, each drawn from its number as seed."""
SMALLER = (5 / 8, 7 / 8, 3 / 4)
"""Lengths, as parts of the longest, at which the backend tries arenas, too."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Steps of several lengths that one code runs.

    Attributes:
        in_a_row: The lengths of a benchmark, in order.
        longest: The longest one, for which the code was planned.
        smaller: Lengths at which the backend tries arenas, too.
    """

    in_a_row: tuple[EmittedStep, ...]
    longest: EmittedStep
    smaller: tuple[EmittedStep, ...]

    def scaled(self, scale: int) -> Lengths:
        """The same of larger values."""
        row, smaller = (tuple(one.scaled(scale) for one in steps) for steps in (self.in_a_row, self.smaller))
        return Lengths(row, self.longest.scaled(scale), smaller)

    def over_lengths(self, lives: Sequence[Sequence[Life]], order: Sequence[int] | None = None) -> Reserved:
        """What is reserved if the steps in a row, or in another order, allocate `lives`.

        What only some lengths have resident is their batch, which comes with the step.
        """
        resident = shared_resident(self.in_a_row)
        rows = [[*batch_of(step, resident), *own] for step, own in zip(self.in_a_row, lives)]
        return reserved(resident, self.longest.state, [rows[i] for i in order or range(len(rows))])

    def placed(self, expandable: bool) -> list[PlacedStep]:
        """Each step in the arenas that the backend would choose for the longest."""
        arenas, largest = chosen_arenas(self.longest, self.smaller, expandable), self.longest.allocations
        return [PlacedStep(one, arenas, largest) for one in self.in_a_row]


def lengths_rows(model: str, lengths: Lengths, parts: Sequence[float]) -> Iterator[LengthsRow]:
    """The rows of a sequence of lengths, as it is and scaled."""
    for scale in (1, max(1, SCALED_PEAK // lengths.longest.peak_bytes)):
        one = lengths.scaled(scale)
        resident, steps = shared_resident(one.in_a_row), one.in_a_row
        placed = [one.placed(kind == "expandable") for kind in KINDS]
        longest = [PlacedStep.of(one.longest, own[0].arenas).figures for own in placed]
        throughout = arenas_throughout(one.longest)
        alone = [
            [PlacedStep.of(step, chosen_arenas(step, (), kind == "expandable")) for step in steps] for kind in KINDS
        ]
        orders = [Random(seed).sample(range(len(steps)), len(steps)) for seed in range(ORDERS)]
        everywhere = [PlacedStep(step, throughout, one.longest.allocations).lives for step in steps]
        yield LengthsRow(
            model=model,
            scale=scale,
            lengths=tuple(parts),
            budget_bytes=lengths.longest.budget_bytes,
            alive_bytes=max(alive_bytes([*batch_of(step, resident), *step.lives]) for step in steps),
            online=one.over_lengths([step.lives for step in steps]),
            planned=_by_kind(one, placed),
            alone=_by_kind(one, alone),
            throughout=one.over_lengths(everywhere),
            online_in_orders=tuple(one.over_lengths([step.lives for step in steps], order) for order in orders),
            planned_in_orders=tuple(_by_kind(one, placed, order) for order in orders),
            segments=longest[0],
            expandable=longest[1],
        )


def _by_kind(lengths: Lengths, placed: Sequence[Sequence[PlacedStep]], order: Sequence[int] | None = None) -> Reserved:
    """What is reserved with the arenas of each kind of segments."""
    pairs = zip(placed, KINDS, strict=True)
    return Reserved(*(lengths.over_lengths([one.lives for one in own], order).of(kind) for own, kind in pairs))


def batch_of(step: EmittedStep, resident: Sequence[int]) -> list[Life]:
    """What is resident at one length and not at all of them, which comes with its step."""
    return [Life(size, 0) for size in (Counter(step.resident) - Counter(resident)).elements()]


def shared_resident(steps: Sequence[EmittedStep]) -> list[int]:
    """Sizes of what is resident at all lengths: parameters and buffers."""
    common = Counter(steps[0].resident)
    for step in steps[1:]:
        common &= Counter(step.resident)
    found = []
    for size in steps[0].resident:
        if common[size]:
            common[size] -= 1
            found.append(size)
    return found
