"""Warn where more than the planned graphs takes memory in a step, so that it may exceed its budget.

Gradients that are there before a step are resident, as parameters are; a person who accumulates them over several calls
takes all of them for one step all the same.  What Dynamo left to eager, a recurrent layer for one, holds what its
backward needs while the graphs behind it run.  And autograd makes the gradients of outputs that are views of inputs.
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
WORTH_TELLING = 0.1
"""Part of a step's memory that eager work takes at least where it is told of where the budget is a fraction."""


@dataclass(slots=True, eq=False)
class BesideThePlan:
    """What takes memory beside the planned graphs of a step.

    Attributes:
        peak_bytes: Peak of the graphs by themselves.
        limit_bytes: What the step may take; `None` where that is no number of bytes.
        graphs: How many graphs were planned.
        told: Gradients from before the step were warned of.
        told_of_eager: So was eager work.
        told_of_views: So were outputs that are views of inputs.
        told_of_end: So was the end of the step.
    """

    peak_bytes: int
    limit_bytes: int | None
    graphs: int = 1
    told: bool = False
    told_of_eager: bool = False
    told_of_views: bool = False
    told_of_end: bool = False
    _gradients: dict[Hashable, int] = field(default_factory=dict)
    _looks: dict[Hashable, int] = field(default_factory=dict)

    def say_eager(self, eager_bytes: int, *, of_part: bool) -> None:
        """Warn of operators outside of the graphs.

        Args:
            eager_bytes: What they hold for their backward.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        together = self.peak_bytes + eager_bytes
        if not self.told_of_eager and self._is_worth_telling(eager_bytes, of_part):
            self.told_of_eager = True
            logger.warning(
                "memory_budget is not kept for all of the step: operators that Dynamo left to eager hold %s for their "
                "backward, %.0f %% of it, beside the %s of %d planned %s; "
                'TORCH_LOGS="graph_breaks" shows where the step is cut, and what to change',
                format_bytes(eager_bytes),
                100 * eager_bytes / together,
                format_bytes(self.peak_bytes),
                self.graphs,
                "graph" if self.graphs == 1 else "graphs",
            )

    def say_views(self, view_bytes: int, *, of_part: bool) -> None:
        """Warn of outputs that are views of inputs.

        Args:
            view_bytes: What the gradients take that autograd makes of theirs, if the step uses them all.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        if not self.told_of_views and self._is_worth_telling(view_bytes, of_part):
            self.told_of_views = True
            logger.warning(
                "memory_budget may not be kept for all of the step: outputs are views of inputs, and autograd makes "
                "their gradients beside the planned graphs, %s on top of the graphs' %s; return clones of the views, "
                "or detach those that need no gradient",
                format_bytes(view_bytes),
                format_bytes(self.peak_bytes),
            )

    def say_end(self, end_bytes: int, *, of_part: bool) -> None:
        """Warn of the backward of operators in front of the graphs, which runs when all other gradients are there.

        Args:
            end_bytes: What the step takes then.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        if not self.told_of_end and self._is_worth_telling(end_bytes - self.peak_bytes, of_part):
            self.told_of_end = True
            logger.warning(
                "memory_budget is not kept for all of the step: at its end, where the backward of operators runs that "
                "Dynamo left to eager, gradients take %s, more than the %s of the planned graphs",
                format_bytes(end_bytes),
                format_bytes(self.peak_bytes),
            )

    def _is_worth_telling(self, more_bytes: int, of_part: bool) -> bool:
        """Whether these exceed the budget together with the graphs, or are much of the whole where it is a part."""
        together, limit = self.peak_bytes + more_bytes, self.limit_bytes
        exceeds = limit is not None and together > limit
        return more_bytes > 0 and (exceeds or (of_part and more_bytes > WORTH_TELLING * together))

    def look(self, graph: Hashable, arguments: Sequence[Any]) -> bool:
        """Look at a call of one of the graphs for gradients that it accumulates into, and warn of them once.

        Returns:
            Whether its next calls are to be looked at, too.
        """
        if self.limit_bytes is None or self.told:
            return False
        looks = self._looks[graph] = self._looks.get(graph, 0) + 1
        gradients = [x.grad for x in arguments if isinstance(x, torch.Tensor) and x.is_leaf and x.grad is not None]
        there_bytes = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
        self._gradients[graph] = max(self._gradients.get(graph, 0), there_bytes)
        together = sum(self._gradients.values())
        if together and self.peak_bytes + together > self.limit_bytes:
            self.told = True
            logger.warning(
                "gradients of %s are there before the step, as where they are accumulated over several calls: they are "
                "resident, as parameters are, and come on top of the step's %s, to more than memory_budget=%d bytes; "
                "name a budget that is smaller by as much to have room for them",
                format_bytes(together),
                format_bytes(self.peak_bytes),
                self.limit_bytes,
            )
        return looks < LOOKS and not self.told
