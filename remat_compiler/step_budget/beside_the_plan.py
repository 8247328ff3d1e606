"""Warn if memory outside the planned graphs may make a step exceed its budget.

There are four kinds.  Operators that Dynamo left to eager, such as a recurrent layer, hold what their backward needs
while later graphs run, and return what these keep.  For outputs that are views of inputs, autograd itself makes the
gradients, and it casts those of parameters that ask for another type.  And the results of a graph without gradients
before a graph break are resident to the graphs after it; by itself it may peak higher than they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.log import logger_of
from remat_compiler.units import format_bytes

logger = logger_of(__name__)

LOOKS = 8
"""Calls of a graph without gradients whose results are noted."""
LOOKS_BEHIND, LOOKS_OF_KIND = 64, 3
"""Backwards whose eager operators are looked at as they begin; the same of those with as many operators."""
WORTH_TELLING = 0.02
"""Under a fraction or "min": a step that exceeds the planned graphs' peak by more than this part is warned of."""


_WHERE_CUT = 'TORCH_LOGS="graph_breaks" shows where the step is cut, and what to change'
_TOLD = {
    "eager_bytes": "memory_budget is not kept for all of the step: operators that Dynamo left to eager hold or return "
    "%(more)s for the backward, %(percent)s of the step, beside the %(planned)s of %(graphs)s; " + _WHERE_CUT,
    "view_bytes": "memory_budget may not be kept for all of the step: outputs are views of inputs, and autograd makes "
    "their gradients beside the planned graphs, %(more)s on top of the graphs' %(planned)s; return clones of the "
    "views, or detach those that need no gradient",
    "made_bytes": "memory_budget is not kept for all of the step: graphs without gradients make %(more)s in front of "
    "the planned graphs, which is there beside them, on top of their %(planned)s; " + _WHERE_CUT,
    "more_before": "memory_budget is not kept for all of the step: a graph without gradients, in front of the planned "
    "graphs, takes %(together)s, more than their %(planned)s, and nothing of it can be computed again; " + _WHERE_CUT,
    "more_at_end": "memory_budget is not kept for all of the step: at its end, where the backward of operators runs "
    "that Dynamo left to eager, gradients and what is computed again take %(together)s, more than the %(planned)s of "
    "the planned graphs; " + _WHERE_CUT,
    "cast_bytes": "memory_budget is not kept for all of the step: at its end, autograd casts gradients to the type "
    "that Tensor.grad_dtype names, and so they take %(together)s, more than the %(planned)s of the planned graphs",
}
"""The warning for each figure of `Outside`."""
_BEHIND = (
    "memory_budget is not kept for all of the step: operators that Dynamo left to eager behind the planned graphs take "
    "%(more)s for their backward, as it begins beside %(held)s that is held for the backward of the %(graphs)s, "
    "%(together)s in all; compile them with the model, such as its loss, in one function; if they are in it, "
    + _WHERE_CUT
)
_IN_CALL = (
    "memory_budget is not kept for all of the step: a call of %(name)s takes %(together)s, more than the %(planned)s "
    "of its planned graphs, with operators that Dynamo left to eager; " + _WHERE_CUT
)


@dataclass(slots=True, eq=False)
class Outside:
    """Memory of a step outside one planned graph, as the calls of the graph show it.

    Attributes:
        eager_bytes: Bytes that operators left to eager hold for their backward, or return to a graph that holds them
            for its own, most in front of one call.
        view_bytes: Bytes of gradients that autograd makes for inputs of which outputs are views.
        made_bytes: Bytes that graphs without gradients made for it.
        before_bytes: Peak of those in front of a call, most of one.
        more_at_end: Bytes that the step takes at its end beyond what the graph leaves; may be below 0.
        cast_bytes: Bytes that gradients take at its end beyond what the graph leaves, since autograd casts them.
    """

    eager_bytes: int = 0
    view_bytes: int = 0
    made_bytes: int = 0
    before_bytes: int = 0
    more_at_end: int = 0
    cast_bytes: int = 0
    _eager_of_calls: list[int] = field(default_factory=list)

    def eager_of(self, calls: int) -> int:
        """`eager_bytes` of so many calls in a step: each has operators of its own in front of it."""
        seen = self._eager_of_calls
        # Those of one step follow each other.
        return max(sum(seen[first : first + calls]) for first in range(max(len(seen) - calls, 0) + 1))

    def see(self, arguments: Sequence[Any], outputs: Any) -> None:
        """Take in one more call, before its backward."""
        # Once the backward has run, autograd's nodes hold nothing any more.
        eager_bytes = torch_compat.saved_by_eager(arguments, outputs)
        self.eager_bytes = max(self.eager_bytes, eager_bytes)
        self._eager_of_calls.append(eager_bytes)
        self.view_bytes = max(self.view_bytes, torch_compat.gradients_of_views(arguments, outputs))
        self.made_bytes = max(self.made_bytes, made_by_untrained(arguments))
        self.before_bytes = max(self.before_bytes, *_peaks_before)
        _peaks_before[:] = [0]
        self.more_at_end = torch_compat.gradients_by_eager(arguments)
        self.cast_bytes = torch_compat.gradients_by_casts(arguments)


class Untrained:
    """A compiled graph without gradients that ends at a graph break.

    Args:
        compiled: Its compiled code.
        peak_bytes: What it takes by itself; 0 if that is not known.
    """

    def __init__(self, compiled: Callable[..., Any], peak_bytes: int = 0) -> None:
        self.compiled, self.peak_bytes = compiled, peak_bytes
        self._looks = LOOKS

    def __call__(self, *arguments: Any) -> Any:
        """Run it; in its first calls, note the memory that it makes."""
        if not self._looks:
            return self.compiled(*arguments)
        self._looks -= 1
        # Held weakly meanwhile: none of their addresses can be that of new memory.
        given = torch_compat.watched_sizes(arguments)
        outputs = self.compiled(*arguments)
        _peaks_before.append(self.peak_bytes)
        begun, known = torch_compat.backwards_begun(), {storage.cdata for storage, _ in given}
        # Views of inputs take no memory of their own, and inputs may get new memory.
        there = torch_compat.watched_sizes([*outputs, *arguments])
        made = [(storage, size, begun) for storage, size in there if storage.cdata not in known]
        _made[:] = [*_alive(), *made]
        return outputs


def made_by_untrained(arguments: Sequence[Any]) -> int:
    """Bytes that graphs without gradients made and that are arguments, or are there since the latest backward began."""
    begun, given = torch_compat.backwards_begun(), torch_compat.storages_of(arguments)
    # Graphs may hand on what earlier ones made.
    made = {storage.cdata: size for storage, size, since in _alive() if since == begun or storage.cdata in given}
    return sum(made.values())


def _alive() -> list[tuple[Any, int, int]]:
    return [one for one in _made if not one[0].expired()]


_made: list[tuple[Any, int, int]] = []
"""Weak references to the memory that graphs without gradients made, its bytes, and how many backwards had begun.

What a program keeps of a tensor may be another one of the same memory, as after ``x.data = made``.
"""
_peaks_before = [0]
"""Peak bytes of the graphs without gradients that ran since the latest call of a planned graph was looked at."""


@dataclass(slots=True, eq=False)
class BesideThePlan:
    """The warnings about memory outside the planned graphs of a step.

    Attributes:
        peak_bytes: Peak of the graphs by themselves.
        limit_bytes: The step's limit; `None` if it is no number of bytes.
        graphs: Number of planned graphs.
        told: The warnings so far, by attributes of `Outside`.
        behind: Numbers of eager operators behind the graphs, and bytes that the latest graph held, of backwards that
            were looked at, and how often.
    """

    peak_bytes: int
    limit_bytes: int | None
    graphs: int = 1
    told: set[str] = field(default_factory=set)
    behind: Counter[tuple[int, int]] = field(default_factory=Counter)

    def say(self, outside: Outside, left_bytes: int | None, *, of_part: bool) -> None:
        """Warn of memory outside the graphs.

        Args:
            outside: The figures.
            left_bytes: Bytes that the graphs leave after their backward; `None` if not known.
            of_part: Whether the budget is a part of the graphs' peak, and no number of bytes.
        """
        more = {
            "eager_bytes": outside.eager_bytes,
            "view_bytes": outside.view_bytes,
            "made_bytes": outside.made_bytes,
            "more_before": outside.before_bytes - self.peak_bytes,
        }
        # At the end the graphs hold only what they leave: all of it counts as one figure, relative to their peak.
        if left_bytes is not None:
            more["more_at_end"] = left_bytes + outside.more_at_end - self.peak_bytes
            if outside.cast_bytes:
                more["cast_bytes"] = left_bytes + outside.cast_bytes - self.peak_bytes
        for what, more_bytes in more.items():
            if self._is_worth_telling(what, more_bytes, of_part):
                together = self.peak_bytes + more_bytes
                figures = {
                    "more": format_bytes(more_bytes),
                    "percent": f"{100 * more_bytes / together:.0f} %",
                    "planned": format_bytes(self.peak_bytes),
                    "together": format_bytes(together),
                    "graphs": self._graphs(),
                }
                logger.warning(_TOLD[what], figures)

    def is_new_behind(self, kind: tuple[int, int]) -> bool:
        """Whether a backward that begins with so much work behind the graphs is to be looked at."""
        if self.behind[kind] >= LOOKS_OF_KIND or self.behind.total() >= LOOKS_BEHIND:
            return False
        self.behind[kind] += 1
        return True

    def say_behind(self, eager_bytes: int, held_bytes: int, *, of_part: bool) -> None:
        """Warn of eager operators whose backward comes before that of the graphs.

        Args:
            eager_bytes: Most bytes that they hold and allocate at one time.
            held_bytes: Bytes that are held meanwhile for the backward of the graphs.
            of_part: See `say`.
        """
        # A part of the graphs' own peak is exceeded where their peak is; by a little, every eager loss does.
        limit = self.peak_bytes * (1 + WORTH_TELLING) if of_part else self.limit_bytes
        together = held_bytes + eager_bytes
        # If the graphs alone hold too much, as in a step that is not known yet, that is told elsewhere.
        if limit is not None and held_bytes <= limit < together and "behind" not in self.told:
            self.told.add("behind")
            logger.warning(
                _BEHIND,
                {
                    "more": format_bytes(eager_bytes),
                    "held": format_bytes(held_bytes),
                    "together": format_bytes(together),
                    "graphs": self._graphs(),
                },
            )

    def say_in_call(self, name: str, peak_bytes: int, held_bytes: int, planned_bytes: int, *, of_part: bool) -> None:
        """Warn of eager operators within a call of a compiled module.

        Args:
            name: The module.
            peak_bytes: Most bytes that the call took at one time.
            held_bytes: Bytes that earlier calls hold for their backward meanwhile.
            planned_bytes: Peak of the forwards of its planned graphs.
            of_part: See `say`.
        """
        planned = max(self.peak_bytes, held_bytes + planned_bytes)
        limit = planned * (1 + WORTH_TELLING) if of_part else self.limit_bytes
        together = held_bytes + peak_bytes
        # Where the graphs alone take too much, or something is told that may be the reason, that is enough.
        if limit is not None and planned <= limit < together and not self.told:
            self.told.add("in the call")
            figures = {"name": name, "together": format_bytes(together), "planned": format_bytes(planned)}
            logger.warning(_IN_CALL, figures)

    def _graphs(self) -> str:
        return f"{self.graphs} planned {'graph' if self.graphs == 1 else 'graphs'}"

    def _is_worth_telling(self, what: str, more_bytes: int, of_part: bool) -> bool:
        """Whether these bytes exceed the budget, or are much of the step if it is a part.  True once."""
        together, limit = self.peak_bytes + more_bytes, self.limit_bytes
        exceeds = limit is not None and together > limit
        worth = more_bytes > 0 and (exceeds or (of_part and more_bytes > WORTH_TELLING * self.peak_bytes))
        first = worth and what not in self.told
        if first:
            self.told.add(what)
        return first
