"""What a step needs at least, and what there is for it."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.fitting.fit_report import FitReport


@dataclass(frozen=True, slots=True)
class Room:
    """A step at one batch, as planning sees it.

    Attributes:
        batch: What its inputs were made with.
        left_bytes: What the device, or the user's budget, leaves for its peak.
        needed_bytes: Its smallest peak, as the planner estimates it; under a fraction, what that comes to.
    """

    batch: int
    left_bytes: int
    needed_bytes: int

    def slack_bytes(self, scale: float = 1.0) -> int:
        """What is left over; negative if it does not fit.

        Args:
            scale: How much larger emitted code turned out to be than the estimate.
        """
        return self.left_bytes - int(scale * self.needed_bytes)


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
