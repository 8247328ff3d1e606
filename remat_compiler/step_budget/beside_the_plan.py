"""Warn where more than the planned graphs takes memory in a step, so that it may exceed its budget.

Gradients that are there before a step are resident, as parameters are; a person who accumulates them over several calls
takes all of them for one step all the same.  What Dynamo left to eager, a recurrent layer for one, holds what its
backward needs while the graphs behind it run.  Autograd makes the gradients of outputs that are views of inputs.  And
what a graph without gradients makes in front of a graph break is an input to the graphs behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from remat_compiler import torch_compat
from remat_compiler.units import format_bytes

logger = logging.getLogger(__name__)

LOOKS = 8
"""Calls of each graph that are looked at; one among them finds gradients where a step is made of up to as many."""
WORTH_TELLING = 0.1
"""Part of a step's memory that eager work takes at least where it is told of where the budget is a fraction."""


_WHERE_CUT = 'TORCH_LOGS="graph_breaks" shows where the step is cut, and what to change'
_TOLD = {
    "eager_bytes": "memory_budget is not kept for all of the step: operators that Dynamo left to eager hold %(more)s "
    "for their backward, %(percent)s of it, beside the %(planned)s of %(graphs)s; " + _WHERE_CUT,
    "view_bytes": "memory_budget may not be kept for all of the step: outputs are views of inputs, and autograd makes "
    "their gradients beside the planned graphs, %(more)s on top of the graphs' %(planned)s; return clones of the "
    "views, or detach those that need no gradient",
    "made_bytes": "memory_budget is not kept for all of the step: graphs without gradients make %(more)s in front of "
    "the planned graphs, which take it for inputs, on top of their %(planned)s; " + _WHERE_CUT,
    "more_at_end": "memory_budget is not kept for all of the step: at its end, where the backward of operators runs "
    "that Dynamo left to eager, gradients take %(together)s, more than the %(planned)s of the planned graphs",
}
"""What is said of each figure of `Outside`."""


@dataclass(slots=True, eq=False)
class Outside:
    """What takes memory in a step beside one planned graph, as its calls show it.

    Attributes:
        eager_bytes: What operators hold for their backward that Dynamo left to eager.
        view_bytes: Gradients that autograd makes for inputs that outputs are views of.
        made_bytes: Inputs that graphs without gradients made.
        more_at_end: What the step takes at its end beyond what the graph leaves; may be below 0.
    """

    eager_bytes: int = 0
    view_bytes: int = 0
    made_bytes: int = 0
    more_at_end: int = 0

    def see(self, arguments: Sequence[Any], outputs: Any) -> None:
        """Take in one more call, before its backward."""
        self.eager_bytes = max(self.eager_bytes, torch_compat.saved_by_eager(arguments))
        self.view_bytes = max(self.view_bytes, torch_compat.gradients_of_views(arguments, outputs))
        self.made_bytes = max(self.made_bytes, made_by_untrained(arguments))
        self.more_at_end = torch_compat.gradients_by_eager(arguments)


class Untrained:
    """A compiled graph without gradients, in front of a graph break.

    Args:
        compiled: Its compiled code.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        self._looks = LOOKS

    def __call__(self, *arguments: Any) -> Any:
        """Run it; note what it makes, in its first calls."""
        outputs = self.compiled(*arguments)
        if self._looks:
            self._looks -= 1
            given = torch_compat.storages_of(arguments)
            for output in outputs:
                if not torch_compat.storages_of([output]) <= given:
                    _made[output] = None
        return outputs


def made_by_untrained(arguments: Sequence[Any]) -> int:
    """Bytes of the arguments that graphs without gradients made."""
    made = {id(value): value for value in arguments if isinstance(value, torch.Tensor) and value in _made}
    return sum(map(torch_compat.num_bytes, made.values()))


_made: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tensors that graphs without gradients made, as long as somebody holds them."""


@dataclass(slots=True, eq=False)
class BesideThePlan:
    """What takes memory beside the planned graphs of a step.

    Attributes:
        peak_bytes: Peak of the graphs by themselves.
        limit_bytes: What the step may take; `None` where that is no number of bytes.
        graphs: How many graphs were planned.
        told: What was warned of: ``"gradients"`` from before the step, and the attributes of `Outside`.
    """

    peak_bytes: int
    limit_bytes: int | None
    graphs: int = 1
    told: set[str] = field(default_factory=set)
    _gradients: dict[Hashable, int] = field(default_factory=dict)
    _looks: dict[Hashable, int] = field(default_factory=dict)

    def say(self, outside: Outside, left_bytes: int | None, *, of_part: bool) -> None:
        """Warn of what is beside the graphs.

        Args:
            outside: What is there.
            left_bytes: What the graphs leave after their backward; `None` where that is not known.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        more = {"eager_bytes": outside.eager_bytes, "view_bytes": outside.view_bytes, "made_bytes": outside.made_bytes}
        if left_bytes is not None:
            more["more_at_end"] = left_bytes + outside.more_at_end - self.peak_bytes
        for what, more_bytes in more.items():
            if self._is_worth_telling(what, more_bytes, of_part):
                together = self.peak_bytes + more_bytes
                figures = {
                    "more": format_bytes(more_bytes),
                    "percent": f"{100 * more_bytes / together:.0f} %",
                    "planned": format_bytes(self.peak_bytes),
                    "together": format_bytes(together),
                    "graphs": f"{self.graphs} planned {'graph' if self.graphs == 1 else 'graphs'}",
                }
                logger.warning(_TOLD[what], figures)

    def _is_worth_telling(self, what: str, more_bytes: int, of_part: bool) -> bool:
        """Whether these exceed the budget with the graphs, or are much of the whole where it is a part; true once."""
        together, limit = self.peak_bytes + more_bytes, self.limit_bytes
        exceeds = limit is not None and together > limit
        worth = more_bytes > 0 and (exceeds or (of_part and more_bytes > WORTH_TELLING * together))
        first = worth and what not in self.told
        if first:
            self.told.add(what)
        return first

    def look(self, graph: Hashable, arguments: Sequence[Any]) -> bool:
        """Look at a call of one of the graphs for gradients that it accumulates into, and warn of them once.

        Returns:
            Whether its next calls are to be looked at, too.
        """
        if self.limit_bytes is None or "gradients" in self.told:
            return False
        looks = self._looks[graph] = self._looks.get(graph, 0) + 1
        gradients = [x.grad for x in arguments if isinstance(x, torch.Tensor) and x.is_leaf and x.grad is not None]
        there_bytes = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
        self._gradients[graph] = max(self._gradients.get(graph, 0), there_bytes)
        together = sum(self._gradients.values())
        if together and self.peak_bytes + together > self.limit_bytes:
            self.told.add("gradients")
            logger.warning(
                "gradients of %s are there before the step, as where they are accumulated over several calls: they are "
                "resident, as parameters are, and come on top of the step's %s, to more than memory_budget=%d bytes; "
                "name a budget that is smaller by as much to have room for them",
                format_bytes(together),
                format_bytes(self.peak_bytes),
                self.limit_bytes,
            )
        return looks < LOOKS and "gradients" not in self.told
