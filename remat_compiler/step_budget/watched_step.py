"""The calls of one training step, in the order in which they ran; `step_watch` writes them down.

A step knows when it is complete, what its calls hand on to each other, and which of its calls the caller keeps open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.step_model.events import Call, CallKey, Event, Leaf, Passed, Sightings, Turn

G = TypeVar("G")


@dataclass(slots=True, eq=False)
class WatchedStep(Generic[G]):
    """The calls of one step.

    Attributes:
        graphs: The distinct graphs, in the order of their first calls.
        calls: The calls in order; each names its graph by its position in `graphs`.
        turns: The forwards, backwards and drops of the calls, in order.
        notes: For each call the note that `forward` was given.
        seen: What was seen at its turns.
        aside: Calls of earlier steps that were open when this one ended: their graphs and notes.
        open: Addresses of the outputs of each call whose backward has not run.
        outputs: Storages of the outputs of each call that are not known to be gone.
        argument_counts: How many arguments each call had.
        nodes: Identity of autograd's node of each call.
        leaf_numbers: The number of each leaf that is no parameter, by its identity.
        value_numbers: The number of each value that no graph made, by its addresses.
        left: Earlier steps of the thread that are over, but have open calls.
        over: Whether its open calls were set aside.
        survived: How many steps its open calls have outlived.
        collections: Garbage collections that were made for its open calls.
    """

    graphs: list[G] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: list[Event] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    seen: Sightings = field(default_factory=Sightings)
    aside: tuple[tuple[G, Any], ...] = ()
    open: dict[int, frozenset[int]] = field(default_factory=dict)
    outputs: dict[int, list[Any]] = field(default_factory=dict)
    argument_counts: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    _parameters: dict[tuple[int, frozenset[int]], int] = field(default_factory=dict)
    leaf_numbers: dict[int, int] = field(default_factory=dict)
    value_numbers: dict[frozenset[int], int] = field(default_factory=dict)
    left: list[WatchedStep[G]] = field(default_factory=list)
    over: bool = False
    _base: tuple[frozenset[int], int] = (frozenset(), 0)
    survived: int = 0
    collections: int = 0

    @property
    def open_calls(self) -> list[tuple[G, Any]]:
        """The graph and the note of each call that still holds what its forward saved."""
        # A copy of the keys: autograd's thread may close a call meanwhile.
        return [(self.graphs[self.calls[call].graph], self.notes[call]) for call in tuple(self.open)]

    @property
    def parameters(self) -> dict[CallKey, frozenset[int]]:
        """For each graph, by its position, and set of parameters, by its number: the identities of these parameters."""
        return {(graph, number): parameters for (graph, parameters), number in self._parameters.items()}

    def add_call(
        self,
        graph: G,
        passed: tuple[Passed, ...],
        note: Any,
        addresses: frozenset[int],
        parameters: frozenset[int],
        leaves: tuple[Leaf, ...] = (),
    ) -> int:
        """Add an open call; return its number."""
        call = len(self.calls)
        position = next((i for i, known in enumerate(self.graphs) if known is graph), len(self.graphs))
        if position == len(self.graphs):
            self.graphs.append(graph)
        # Sets of parameters are numbered for each graph apart, in the order in which it is called with them.
        others = sum(of_graph == position for of_graph, _ in self._parameters)
        number = self._parameters.setdefault((position, parameters), others)
        self.calls.append(Call(position, passed, number, leaves))
        self.turns.append((Turn.FORWARD, call))
        self.notes.append(note)
        self.open[call] = addresses
        return call

    def add(self, graph: G, note: Any) -> None:
        """Add a call of which nothing else is known."""
        # Its parameters are not known either: a number that is no object's identity makes them equal to no others.
        self.add_call(graph, (), note, frozenset(), frozenset({-1 - len(self.calls)}))

    def begun(self, calls: int, turns: list[Event], notes: list[Any]) -> WatchedStep[G]:
        """A step that began with the same first calls, to go on from there; with other turns and notes."""
        # Not when outputs were let go of: the same graphs may have run for other modules, which hold theirs longer.
        seen = Sightings(self.seen.renumbered({call: call for call in range(calls)}).sharded)
        found = WatchedStep(list(self.graphs), self.calls[:calls], turns, notes, seen)
        found._parameters = dict(self._parameters)
        # Its leaves may be gone, and others in their place: their numbers are taken, by no object's identity.
        found.leaf_numbers = {-1 - leaf.number: leaf.number for call in found.calls for leaf in call.leaves}
        return found

    def note_released(self, event: Event) -> None:
        """Note the calls whose outputs are gone before `event`."""
        gone = [call for call, outputs in self.outputs.items() if all(one.expired() for one in outputs)]
        for call in gone:
            del self.outputs[call]
            self.seen.released[call] = event

    def note_made(self, call: int, gradients: Sequence[Any]) -> None:
        """Note which gradients the backward of a call made: none of a value that it only compares."""
        one = self.calls[call]
        if one.passed and len(gradients) == self.argument_counts.get(call):
            made = tuple(passed for passed in one.passed if gradients[passed.argument] is not None)
            self.calls[call] = replace(one, passed=made)

    def completed(self, patience: int) -> WatchedStep[G] | None:
        """The step that ran after the open calls were made; `None` if none did, or if they may belong to it.

        Called before a forward.

        Args:
            patience: Steps that an open call may outlive before it counts as kept, if the same call is not made again.
        """
        kept = frozenset(self.open)
        if not kept:
            return None  # then `_end` told of the step
        # Only what came after the last turn of an open call, and after the step found last time, can be a new step.
        first = 1 + max(i for i, (_, call) in enumerate(self.turns) if call in kept)
        first = max(first, self._base[1] if kept == self._base[0] else 0)
        turns = self.turns[first:]
        inside = {call for turn, call in turns if turn is Turn.FORWARD}
        # A backward of an earlier call is one of the step that goes on, as where micro-batches overlap: f f b f b …
        trained = {self._key(call) for turn, call in turns if turn is Turn.BACKWARD and call in inside}
        if not trained:
            # No call came and went.  With graphs that are all kept for another backward, the step may still be over.
            return self if all((Turn.KEPT, call) in self.turns for call in kept) else None
        self.survived = self.survived + 1 if kept == self._base[0] else 1
        self._base = (kept, len(self.turns))
        # Open while the same call is made again: the caller keeps its output.  Otherwise it may belong to the step, as
        # that of a generator which waits for its critic, until it has outlived several.
        again = all(self._key(call) in trained or (Turn.KEPT, call) in self.turns for call in kept)
        if not again and self.survived < patience:
            return None
        return self._part([turn for turn in turns if turn[1] in inside and turn[1] not in kept])

    def _key(self, call: int) -> tuple[int, int]:
        """The identity of a call: its graph, and its parameters, since one graph may serve several modules."""
        return self.calls[call].graph, self.calls[call].parameters

    def _part(self, turns: list[tuple[Turn, int]]) -> WatchedStep[G]:
        """A new step from some turns; turns of calls whose forward is not among them are left out."""
        found: WatchedStep[G] = WatchedStep()
        numbers: dict[int, int] = {}
        identities = self.parameters
        for turn, call in turns:
            if turn is Turn.FORWARD:
                old, graph = self.calls[call], self.graphs[self.calls[call].graph]
                # Calls outside of the part have no number in it: gradients go to them as to eager operators.
                passed = tuple(replace(one, to=None if one.to is None else numbers.get(one.to)) for one in old.passed)
                parameters = identities[self._key(call)]
                numbers[call] = found.add_call(graph, passed, self.notes[call], frozenset(), parameters, old.leaves)
            elif call in numbers:
                found.turns.append((turn, numbers[call]))
        found.seen = self.seen.renumbered(numbers)
        found.open.clear()  # it is over
        return found


def passed_gradients(
    arguments: Iterable[Any], makers: dict[int, frozenset[int]], values: dict[frozenset[int], int]
) -> tuple[Passed, ...]:
    """Gradients that the backward of a call with these arguments hands to other operators.

    Args:
        arguments: The arguments.
        makers: For each open call the addresses of its outputs.
        values: The number of each value that no graph made, by its addresses; new values are added.
    """
    found: dict[frozenset[int], Passed] = {}
    for argument, tensor in enumerate(arguments):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
            # No address, as of some subclasses: a negative number is none either, and keeps the argument apart.
            addresses = addresses_of(tensor) or frozenset({-1 - argument})
            maker = next((call for call, made in makers.items() if made & addresses), None)
            # Autograd adds up the gradients of a value that is passed twice.
            if addresses not in found:
                value = values.setdefault(addresses, len(values)) if maker is None else -1
                found[addresses] = Passed(torch_compat.num_bytes(tensor), maker, argument, value)
    return tuple(found.values())


def parameters_of(arguments: Iterable[Any]) -> frozenset[int]:
    """The identities of the parameters that a call gives gradients to."""
    return frozenset(id(x) for x in arguments if isinstance(x, torch.nn.Parameter) and x.requires_grad)


def leaves_of(arguments: Iterable[Any], numbers: dict[int, int]) -> tuple[Leaf, ...]:
    """Other leaves that a call gives gradients to; new ones are added to `numbers`, by their identity."""
    found: dict[int, Leaf] = {}
    for one in arguments:
        other = isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)
        if other and one.requires_grad and one.is_leaf:
            number = numbers.setdefault(id(one), 1 + max(numbers.values(), default=-1))
            found[number] = Leaf(number, torch_compat.num_bytes(one))
    return tuple(found.values())


def addresses_of(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the tensor's memory, which views share; none if it has no memory of its own."""
    return frozenset(torch_compat.storages_of([tensor]))
