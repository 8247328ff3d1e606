"""The steps that a budget was shared for, as what each graph may be called behind: a call elsewhere is of a new step.

    nothing open ──f──► place 1 ──g──► place 2        a step that calls f, then g
                           └─────f──► (none)          f again, before the first call ran backward: not known

A graph looks up the place of the call before it, which costs less than to watch the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler.errors import InfeasibleBudget
from remat_compiler.simulate.step_peak import Turn
from remat_compiler.step_budget.step_watch import WatchedStep


class Placed(Protocol):
    """A graph that knows which calls of it are no surprise."""

    places: dict[Any, Place]
    refusals: dict[Any, InfeasibleBudget]


@dataclass(slots=True, eq=False)
class Place:
    """A call in known steps.

    Attributes:
        step: One of the steps.
        call: Its number there; the same one in all of them.
        most_open: How many calls were open before it at most.
    """

    step: WatchedStep[Any]
    call: int
    most_open: int


def learn(step: WatchedStep[Any]) -> None:
    """Calls of such a step are no surprise from now on."""
    _walk(step, new=True)


def is_known(step: WatchedStep[Any]) -> bool:
    """Whether no call of this step is a surprise."""
    return _walk(step, new=False)


def is_among(step: WatchedStep[Any], steps: Sequence[WatchedStep[Any]]) -> bool:
    """Whether one of `steps` ran the same graphs in the same order, forward and backward."""
    course = (step.graphs, step.turns, [call.graph for call in step.calls])
    return any((one.graphs, one.turns, [call.graph for call in one.calls]) == course for one in steps)


def _walk(step: WatchedStep[Any], *, new: bool) -> bool:
    place: Place | None = None
    open_calls = 0
    for turn, call in step.turns:
        if turn is Turn.FORWARD:
            graph: Placed = step.graphs[step.calls[call].graph]
            found = graph.places.get(place)
            if new and found is None:
                found = graph.places[place] = Place(step, call, open_calls)
            if found is None or (found.most_open < open_calls and not new):
                return False
            found.most_open = max(found.most_open, open_calls)
            place, open_calls = found, open_calls + 1
        elif turn is Turn.KEPT and not new:
            return False
        elif turn is not Turn.KEPT:
            open_calls -= 1
    return True


def refuse(step: WatchedStep[Any], error: InfeasibleBudget) -> None:
    """Calls that only such a step makes are refused from now on: of those in a row, the first one before it runs."""
    place: Place | None = None
    for turn, call in step.turns:
        if turn is Turn.FORWARD:
            graph: Placed = step.graphs[step.calls[call].graph]
            if place not in graph.places:
                graph.refusals[place] = error
                return
            place = graph.places[place]


def until(place: Place, open_calls: dict[int, Any]) -> WatchedStep[Any]:
    """A step that came to `place`, with what is noted of the calls that are open."""
    known = place.step
    forward = known.turns.index((Turn.FORWARD, place.call))
    turns = [
        (turn, call) for turn, call in known.turns[: forward + 1] if turn is Turn.FORWARD or call not in open_calls
    ]
    ended = {call for turn, call in turns if turn is not Turn.FORWARD}
    missing = [call for call in range(place.call + 1) if call not in ended and call not in open_calls]
    turns[-1:] = [*((Turn.BACKWARD, call) for call in missing if call != place.call), turns[-1]]
    if place.call in missing:
        turns.append((Turn.BACKWARD, place.call))
    notes = [open_calls.get(call, known.notes[call]) for call in range(place.call + 1)]
    return WatchedStep(list(known.graphs), known.calls[: place.call + 1], turns, notes)
