"""Warn where more than the planned graphs takes memory in a step, so that it may exceed its budget.

Gradients that are there before a step are resident, as parameters are; a person who accumulates them over several calls
takes all of them for one step all the same.  What Dynamo left to eager, a recurrent layer for one, holds what its
backward needs while the graphs behind it run.  Autograd makes the gradients of outputs that are views of inputs.  And
what a graph without gradients makes in front of a graph break is an input to the graphs behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
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
            given = _storages(arguments)
            for output in outputs:
                if not _storages([output]) <= given:
                    _made[output] = None
        return outputs


def made_by_untrained(arguments: Sequence[Any]) -> int:
    """Bytes of the arguments that graphs without gradients made."""
    made = {id(value): value for value in arguments if isinstance(value, torch.Tensor) and value in _made}
    return sum(map(torch_compat.num_bytes, made.values()))


def _storages(values: Iterable[Any]) -> set[int]:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {part.untyped_storage().data_ptr() for tensor in tensors for part in torch_compat.dense_parts(tensor)}


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
        self.say_eager(outside.eager_bytes, of_part=of_part)
        self.say_views(outside.view_bytes, of_part=of_part)
        self.say_made(outside.made_bytes, of_part=of_part)
        if left_bytes is not None:
            self.say_end(left_bytes + outside.more_at_end, of_part=of_part)

    def say_eager(self, eager_bytes: int, *, of_part: bool) -> None:
        """Warn of operators outside of the graphs.

        Args:
            eager_bytes: What they hold for their backward.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        together = self.peak_bytes + eager_bytes
        if self._is_worth_telling("eager_bytes", eager_bytes, of_part):
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
        if self._is_worth_telling("view_bytes", view_bytes, of_part):
            logger.warning(
                "memory_budget may not be kept for all of the step: outputs are views of inputs, and autograd makes "
                "their gradients beside the planned graphs, %s on top of the graphs' %s; return clones of the views, "
                "or detach those that need no gradient",
                format_bytes(view_bytes),
                format_bytes(self.peak_bytes),
            )

    def say_made(self, made_bytes: int, *, of_part: bool) -> None:
        """Warn of what graphs without gradients make for the planned ones, which take it for inputs.

        Args:
            made_bytes: How much it is.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        if self._is_worth_telling("made_bytes", made_bytes, of_part):
            logger.warning(
                "memory_budget is not kept for all of the step: graphs without gradients make %s in front of the "
                "planned graphs, which take it for inputs, on top of their %s; "
                'TORCH_LOGS="graph_breaks" shows where the step is cut, and what to change',
                format_bytes(made_bytes),
                format_bytes(self.peak_bytes),
            )

    def say_end(self, end_bytes: int, *, of_part: bool) -> None:
        """Warn of the backward of operators in front of the graphs, which runs when all other gradients are there.

        Args:
            end_bytes: What the step takes then.
            of_part: Whether the budget is a part of what the graphs take, and no number of bytes.
        """
        if self._is_worth_telling("more_at_end", end_bytes - self.peak_bytes, of_part):
            logger.warning(
                "memory_budget is not kept for all of the step: at its end, where the backward of operators runs that "
                "Dynamo left to eager, gradients take %s, more than the %s of the planned graphs",
                format_bytes(end_bytes),
                format_bytes(self.peak_bytes),
            )

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
