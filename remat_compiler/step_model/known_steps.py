"""The steps that a budget was shared for, as an automaton: after which calls each graph may be called.

    nothing open ──f──► place 1 ──g──► place 2        a step that calls f, then g
                           └─────f──► (none)          f again, before the first call ran backward: not known

A graph looks up the place of the call before its own, which costs less than watching the step.  A call without a place
belongs to a new kind of step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler.errors import InfeasibleBudget
from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.step import Step


class Placed(Protocol):
    """A graph with its places in known steps, and its refused calls, by the place of the call before."""

    places: dict[Place | None, Place]
    refusals: dict[Place | None, InfeasibleBudget]


@dataclass(slots=True, eq=False)
class Place:
    """A call in known steps.

    Attributes:
        step: One of the steps.
        call: Its number there, which is the same in all of them.
        most_open: Largest number of calls that were open before it.
    """

    step: Step[Any]
    call: int
    most_open: int


NOWHERE = Place(Step(), -1, 0)
"""The place of a call that is in no known step: the calls after it find no place either."""


def learn(step: Step[Any]) -> None:
    """Give the calls of this step places, so that they are known from now on."""
    _walk(step, new=True)


def is_known(step: Step[Any]) -> bool:
    """Whether all calls of this step have places, and nothing in it goes beyond them."""
    return _walk(step, new=False)


def is_among(step: Step[Any], steps: Sequence[Step[Any]]) -> bool:
    """Whether one of `steps` ran the same graphs in the same order, forward and backward."""
    # Parameters and gradients passed on are not compared: only which graphs ran, and when.
    course = (step.graphs, step.turns, [call.graph for call in step.calls])
    return any((one.graphs, one.turns, [call.graph for call in one.calls]) == course for one in steps)


def _walk(step: Step[Any], *, new: bool) -> bool:
    """Follow a step from place to place; whether it came to the end.

    Args:
        step: The step.
        new: Whether to make the places that are missing, and to raise `most_open`.
    """
    place: Place | None = None
    open_calls = 0
    for turn, call in step.turns:
        if turn is Turn.FORWARD:
            graph: Placed = step.graph_of(call)
            found = graph.places.get(place)
            if new and found is None:
                found = graph.places[place] = Place(step, call, open_calls)
            if found is None or (found.most_open < open_calls and not new):
                return False
            # Without `new` this changes nothing: more open calls ended the walk above.
            found.most_open = max(found.most_open, open_calls)
            place, open_calls = found, open_calls + 1
        elif turn is Turn.KEPT and not new:
            # Places tell nothing of backwards that keep their graph: `is_among` compares such steps as a whole.
            return False
        elif turn is not Turn.KEPT:
            open_calls -= 1
    return True


def refuse(step: Step[Any], error: InfeasibleBudget) -> None:
    """Refuse, from now on, the first call of this step that no known step makes: nothing after it needs to run."""
    place: Place | None = None
    for turn, call in step.turns:
        if turn is Turn.FORWARD:
            graph: Placed = step.graph_of(call)
            if place not in graph.places:
                graph.refusals[place] = error
                return
            place = graph.places[place]


def kept(known: Step[Any]) -> Step[Any]:
    """A known step whose calls keep their graphs, all of them, for another backward in the end."""
    backwards = [event for event in known.turns if event.turn is Turn.BACKWARD]
    turns = [Event(Turn.KEPT, event.call) if event.turn is Turn.BACKWARD else event for event in known.turns]
    return known.begun(len(known.calls), [*turns, *backwards], known.memories)


def until(place: Place, open_calls: Mapping[int, GraphMemory | None]) -> Step[Any]:
    """A watched step that has come to `place`, as far as the known step and the calls that are open tell.

    Args:
        place: The place of the latest call.
        open_calls: The memory of the calls that are open, by number.
    """
    known = place.step
    # The known step up to the call, without the ends of calls that are open this time.
    forward = known.turns.index(Event(Turn.FORWARD, place.call))
    turns = [
        event for event in known.turns[: forward + 1] if event.turn is Turn.FORWARD or event.call not in open_calls
    ]
    ended = {call for turn, call in turns if turn is not Turn.FORWARD}
    # Calls that are over this time, but were not yet when the known step came here, ended before the latest forward; if
    # the latest call itself is over, after it.
    missing = [call for call in range(place.call + 1) if call not in ended and call not in open_calls]
    turns[-1:] = [*(Event(Turn.BACKWARD, call) for call in missing if call != place.call), turns[-1]]
    if place.call in missing:
        turns.append(Event(Turn.BACKWARD, place.call))
    memories = [open_calls.get(call, known.memories[call]) for call in range(place.call + 1)]
    return known.begun(place.call + 1, turns, memories)
