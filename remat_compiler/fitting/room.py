"""Whether the device has room for a step: the smallest peak that plans reach, and the bytes that are left for it."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.fitting.fit_report import FitReport
from remat_compiler.fitting.outline import Outline


@dataclass(frozen=True, slots=True)
class Room:
    """A step at one batch, as planning sees it.

    Attributes:
        batch: What its inputs were made with.
        left_bytes: What the device, or the user's budget, leaves for its peak.
        needed_bytes: Its smallest peak, as the planner estimates it; under a fraction, what that comes to.
        over_bytes: By how much the caching allocator would exceed the device at that peak; 0 if it has room.
        outline: What tells the step at other batches; `None` if it is several graphs, or under a fraction.
    """

    batch: int
    left_bytes: int
    needed_bytes: int
    over_bytes: int = 0
    outline: Outline | None = None

    def slack_bytes(self, scale: float = 1.0) -> int:
        """What is left over; negative if it does not fit.

        Args:
            scale: How much larger emitted code turned out to be than the estimate.
        """
        slack = self.left_bytes - int(scale * self.needed_bytes)
        return min(slack, -self.over_bytes) if self.over_bytes else slack


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A step that was compiled and measured.

    Attributes:
        report: Its figures.
        budget_bytes: Its budget; `None` for a fraction.
        over: By which part of what there is the step is too large; 0 if it fits.
    """

    report: FitReport
    budget_bytes: int | None
    over: float


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a batch.

    Attributes:
        batch: The batch.
        confirm: Whether its step is to be compiled and measured, rather than planned alone.
        budget_bytes: The budget to compile it under; `None` for all that the device leaves.
        scale: By how much all that is left is to count less, for what other steps took beyond their plans.
    """

    batch: int
    confirm: bool = False
    budget_bytes: int | None = None
    scale: float = 1.0
