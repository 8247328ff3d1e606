"""Lengths of batches as the paper of Mimose describes its data sets (section 3, Figure 3)."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Dataset:
    """Lengths as the paper's Figure 3 shows them: a range, and normal around its middle or falling as a power."""

    shortest: int
    longest: int
    power: float | None

    def draw(self, count: int, seed: int) -> list[int]:
        """Lengths of `count` batches."""
        rng = random.Random(seed)
        drawn: list[int] = []
        while len(drawn) < count:
            if self.power is None:
                middle, spread = (self.shortest + self.longest) / 2, (self.longest - self.shortest) / 6
                length = round(rng.gauss(middle, spread))
            else:
                length = round(self.shortest * (1 - rng.random()) ** (-1 / self.power))
            if self.shortest <= length <= self.longest:
                drawn.append(length)
        return drawn


DATASETS = {"swag": Dataset(35, 141, None), "squad": Dataset(153, 512, None), "qqp": Dataset(30, 332, 1.2)}
