"""Warn where gradients that are there before a step come on top of its budget.

They live before the step, so they are resident, as parameters are.  A person who accumulates gradients over several
calls takes all of them for one step all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_compiler.units import format_bytes

logger = logging.getLogger(__name__)

LOOKS = 8
"""Calls of each graph that are looked at; one among them finds gradients where a step is made of up to as many."""


@dataclass(slots=True, eq=False)
class Accumulation:
    """The gradients that the graphs of a step accumulate into.

    Attributes:
        peak_bytes: Peak of the step without them.
        limit_bytes: What it may take.
    """

    peak_bytes: int
    limit_bytes: int
    _there: dict[Hashable, int] = field(default_factory=dict)
    _looks: dict[Hashable, int] = field(default_factory=dict)
    _told: bool = False

    def look(self, graph: Hashable, arguments: Sequence[Any]) -> bool:
        """Look at a call of one of the graphs.

        Returns:
            Whether its next calls are to be looked at, too.
        """
        looks = self._looks[graph] = self._looks.get(graph, 0) + 1
        gradients = [x.grad for x in arguments if isinstance(x, torch.Tensor) and x.is_leaf and x.grad is not None]
        there_bytes = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
        self._there[graph] = max(self._there.get(graph, 0), there_bytes)
        together = sum(self._there.values())
        if together and not self._told and self.peak_bytes + together > self.limit_bytes:
            self._told = True
            logger.warning(
                "gradients of %s are there before the step, as where they are accumulated over several calls: they are "
                "resident, as parameters are, and come on top of the step's %s, to more than memory_budget=%d bytes; "
                "name a budget that is smaller by as much to have room for them",
                format_bytes(together),
                format_bytes(self.peak_bytes),
                self.limit_bytes,
            )
        return looks < LOOKS and not self._told
