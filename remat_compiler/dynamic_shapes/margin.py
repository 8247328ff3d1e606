"""The measured excess of an allocator over predicted peaks, as a margin on further predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Margin:
    """A margin: the largest excess seen, and more in proportion for peaks larger than those that it was seen at.

    Attributes:
        excess_bytes: Largest excess.
        excess_ratio: Largest excess as a fraction of the predicted peak.
    """

    excess_bytes: int = 0
    excess_ratio: float = 0.0

    def bytes_on(self, predicted_bytes: int) -> int:
        """The margin on a predicted peak."""
        return max(self.excess_bytes, math.ceil(self.excess_ratio * predicted_bytes))

    def learn(self, predicted_bytes: int, measured_bytes: int) -> bool:
        """Note a measured peak; whether the margin grows."""
        # Below 0 if less was taken than predicted, which then changes neither maximum.
        excess = measured_bytes - predicted_bytes
        grows = excess > self.bytes_on(predicted_bytes)
        self.excess_bytes = max(self.excess_bytes, excess)
        self.excess_ratio = max(self.excess_ratio, excess / max(predicted_bytes, 1))
        return grows

    def limit_bytes(self, budget_bytes: int) -> int:
        """The largest predicted peak that is within a budget with its margin, at least 1."""
        limit = min(budget_bytes - self.excess_bytes, int(budget_bytes / (1.0 + self.excess_ratio)))
        while limit > 1 and limit + self.bytes_on(limit) > budget_bytes:
            limit -= 1  # the quotient is not exact to the last byte
        return max(limit, 1)
