"""What happens in a step: graphs are called, and run backward or dropped; and what was seen of memory meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from remat_compiler.step_model.sharding import Seen


@dataclass(frozen=True, slots=True)
class Passed:
    """The gradient of an input that other differentiable operators made.

    Attributes:
        size_bytes: Its bytes.
        to: The call whose output that input is, for which the gradient is a tangent; `None` if no graph made the input.
        argument: Position of that input among the arguments of the call.
        value: If no graph made the input, its number in the step: calls that read the same value add up its gradient,
            which is alive until the last of them has run backward.
    """

    size_bytes: int
    to: int | None
    argument: int = -1
    value: int = -1


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input that gets a gradient of its own and is no parameter, such as what a rank received from another one.

    Attributes:
        number: Which one of the step.
        size_bytes: Its bytes, and those of its gradient.
    """

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """One forward call.

    Attributes:
        graph: Which graph; the same one may be called several times.
        passed: Gradients that its backward hands back.
        parameters: Number of the set of parameters that the call uses; calls with the same set share its gradients.
        leaves: Other leaves that it gives gradients to: calls with the same parameters may have leaves of their own.
    """

    graph: int
    passed: tuple[Passed, ...] = ()
    parameters: int = 0
    leaves: tuple[Leaf, ...] = ()


CallKey = tuple[int, int]
"""A graph and the number of a set of its parameters: calls with the same one add up their gradients."""


class Turn(str, Enum):
    """An event in the life of a call."""

    FORWARD = "forward"
    BACKWARD = "backward"
    KEPT = "kept"
    """A backward after which the graph is kept for another one."""
    DROPPED = "dropped"
    """Its outputs are released without a backward."""


BACKWARDS = (Turn.BACKWARD, Turn.KEPT)


class Event(NamedTuple):
    """What happens, and to which call."""

    turn: Turn
    call: int


@dataclass(slots=True)
class Sightings:
    """What was seen of memory at the turns of a step.

    Attributes:
        sharded: What sharded modules held while the graph of each turn ran; empty without such modules.
        released: For each call whose outputs were seen to be gone, the first turn at whose begin they were.
    """

    sharded: dict[Event, Seen] = field(default_factory=dict)
    released: dict[int, Event] = field(default_factory=dict)

    def renumbered(self, numbers: Mapping[int, int]) -> Sightings:
        """What was seen of some calls, which have other numbers now."""
        sharded = {Event(turn, numbers[call]): seen for (turn, call), seen in self.sharded.items() if call in numbers}
        released = {
            numbers[call]: Event(turn, numbers[at])
            for call, (turn, at) in self.released.items()
            if call in numbers and at in numbers
        }
        return Sightings(sharded, released)


NOTHING_SEEN = Sightings()


def missing_backwards(calls: Sequence[Call], turns: Sequence[Event]) -> list[Event]:
    """The backwards of calls that `turns` does not end, the last call first.

    A step that has come so far runs them, as far as is known.
    """
    # A kept graph may run backward again, but needs no backward added for it.
    ended = {call for turn, call in turns if turn is not Turn.FORWARD}
    return [Event(Turn.BACKWARD, call) for call in reversed(range(len(calls))) if call not in ended]
