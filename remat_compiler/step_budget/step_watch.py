"""Which compiled graphs one training step runs, learnt from the calls themselves.

A step begins with a forward call while no other call is open, and is complete when each of its calls has run backward
or was dropped.  A call is followed by autograd's own node of its outputs: the node lives as long as what the forward
saved, and tells when the backward has run.

A call that stays open because the caller keeps its output does not keep later steps from being complete: it is set
aside once it has outlived a step that made the same call again, or `PATIENCE` steps, more once that was too early:

    f ───────────────────────────────────────────► kept
       f   g   backward g   backward f │ f   g   …
    ◄────────── one step ────────────► ◄── the next one begins here, with the first call set aside
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.simulate.step_peak import Call, CallKey, Event, Leaf, Passed, Sightings, Turn

G = TypeVar("G")

PATIENCE = 3
"""Steps that an open call may outlive before it counts as kept, if the same call is not made again, at first."""
MOST_PATIENCE = 64
"""The same once calls were set aside too early."""
COLLECTIONS = 3
"""Garbage collections for one step with open calls; more are not tried, since each takes as long as many steps."""


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
    """

    graphs: list[G] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: list[Event] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    seen: Sightings = field(default_factory=Sightings)
    aside: tuple[tuple[G, Any], ...] = ()
    _open: dict[int, frozenset[int]] = field(default_factory=dict)
    _outputs: dict[int, list[Any]] = field(default_factory=dict)
    _given: dict[int, int] = field(default_factory=dict)
    _nodes: dict[int, int] = field(default_factory=dict)
    _parameters: dict[tuple[int, frozenset[int]], int] = field(default_factory=dict)
    _leaves: dict[int, int] = field(default_factory=dict)
    _values: dict[frozenset[int], int] = field(default_factory=dict)
    _left: list[WatchedStep[G]] = field(default_factory=list)
    _over: bool = False
    _base: tuple[frozenset[int], int] = (frozenset(), 0)
    _survived: int = 0
    _collections: int = 0

    @property
    def open_calls(self) -> list[tuple[G, Any]]:
        """The graph and the note of each call that still holds what its forward saved."""
        # A copy of the keys: autograd's thread may close a call meanwhile.
        return [(self.graphs[self.calls[call].graph], self.notes[call]) for call in tuple(self._open)]

    @property
    def parameters(self) -> dict[CallKey, frozenset[int]]:
        """For each graph, by its position, and set of parameters, by its number: the identities of these parameters."""
        return {(graph, number): parameters for (graph, parameters), number in self._parameters.items()}

    def _add(
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
        self._open[call] = addresses
        return call

    def add(self, graph: G, note: Any) -> None:
        """Add a call of which nothing else is known."""
        # Its parameters are not known either: a number that is no object's identity makes them equal to no others.
        self._add(graph, (), note, frozenset(), frozenset({-1 - len(self.calls)}))

    def begun(self, calls: int, turns: list[Event], notes: list[Any]) -> WatchedStep[G]:
        """A step that began with the same first calls, to go on from there; with other turns and notes."""
        # Not when outputs were let go of: the same graphs may have run for other modules, which hold theirs longer.
        seen = Sightings(self.seen.renumbered({call: call for call in range(calls)}).sharded)
        found = WatchedStep(list(self.graphs), self.calls[:calls], turns, notes, seen)
        found._parameters = dict(self._parameters)
        # Its leaves may be gone, and others in their place: their numbers are taken, by no object's identity.
        found._leaves = {-1 - leaf.number: leaf.number for call in found.calls for leaf in call.leaves}
        return found

    def _note_released(self, event: Event) -> None:
        """Note the calls whose outputs are gone before `event`."""
        gone = [call for call, outputs in self._outputs.items() if all(one.expired() for one in outputs)]
        for call in gone:
            del self._outputs[call]
            self.seen.released[call] = event

    def _note_made(self, call: int, gradients: Sequence[Any]) -> None:
        """Note which gradients the backward of a call made: none of a value that it only compares."""
        one = self.calls[call]
        if one.passed and len(gradients) == self._given.get(call):
            made = tuple(passed for passed in one.passed if gradients[passed.argument] is not None)
            self.calls[call] = replace(one, passed=made)

    def _completed(self, patience: int) -> WatchedStep[G] | None:
        """The step that ran after the open calls were made; `None` if none did, or if they may belong to it.

        Called before a forward.

        Args:
            patience: Steps that an open call may outlive before it counts as kept, if the same call is not made again.
        """
        kept = frozenset(self._open)
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
        self._survived = self._survived + 1 if kept == self._base[0] else 1
        self._base = (kept, len(self.turns))
        # Open while the same call is made again: the caller keeps its output.  Otherwise it may belong to the step, as
        # that of a generator which waits for its critic, until it has outlived several.
        again = all(self._key(call) in trained or (Turn.KEPT, call) in self.turns for call in kept)
        if not again and self._survived < patience:
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
                numbers[call] = found._add(graph, passed, self.notes[call], frozenset(), parameters, old.leaves)
            elif call in numbers:
                found.turns.append((turn, numbers[call]))
        found.seen = self.seen.renumbered(numbers)
        found._open.clear()  # it is over
        return found


class Here(threading.local):
    """The state of one thread.

    Attributes:
        open: Each call whose backward has not run, by the identity of its node: a weak reference to the node, the
            graph, a note, the call's step (`None` if the call is not watched in full), and its number in the step.
        known: The place of the latest call in a known step, see `known_steps`.
        step: The step that is watched.
        left: Steps that are over, but have open calls.
    """

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, Any, Any, Any, int]] = {}
        self.known: Any = None
        self.step: WatchedStep[Any] = WatchedStep()
        self.left: list[WatchedStep[Any]] = []

    def forget_dropped(self) -> None:
        """Remove calls whose outputs are gone."""
        # A copy, and `pop` with a default: autograd's thread removes entries at the same time.
        for key, (node, *_) in tuple(self.open.items()):
            if node() is None:
                self.open.pop(key, None)


class StepWatch(Generic[G]):
    """Follows the steps of each thread.

    Args:
        complete: Called with each complete step, on the thread that ended it, which may be autograd's own.
        kept: Called with the graph and the number of a call that is not watched, whose backward keeps its graph.
        fails: Called with the graph whose backward failed, and the error, before that goes on.
    """

    def __init__(
        self,
        complete: Callable[[WatchedStep[G]], None],
        kept: Callable[[G, int], None] = lambda graph, call: None,
        fails: Callable[[G, RuntimeError], None] = lambda graph, error: None,
    ) -> None:
        self._complete, self._kept, self._fails = complete, kept, fails
        # Reentrant: within it, memory may be collected, and the finalizer of a node then comes to `_end`.
        self._lock = threading.RLock()
        self._patience = PATIENCE
        self.here = Here()

    @property
    def current(self) -> WatchedStep[G]:
        """The step that this thread is in; empty between steps."""
        here = self.here
        if here.step._over or (here.step.calls and not here.step._open):
            here.left = [step for step in here.left if step._open]
            here.step = WatchedStep(_left=here.left)
        return here.step

    def begin(self) -> None:
        """A forward is about to run: the calls so far may make up a complete step, though older calls are open."""
        with self._lock:
            step = self.current
            done = step._completed(self._patience)
            if done is None:
                return
            # Its open calls are set aside: the next step begins without them.
            step._over = True
            self.here.left.append(step)
            if done is not step:
                done._left = self.here.left
            aside: dict[int, Any] = {}
            for key in step._nodes.values():
                entry = self.here.open.pop(key, None)
                node = None if entry is None else entry[0]()
                if node is not None:
                    # Their backward is still followed, by a table of their own: it tells that they were no kept ones.
                    aside[key] = entry
                    self.follow(node, aside)
        # Without the lock: whoever is told may take other locks.
        self._tell(done)

    def go_on_with(self, step: WatchedStep[G], nodes: Iterable[tuple[int, Any]]) -> None:
        """Watch a step from its middle on.

        Args:
            step: The step so far.
            nodes: The numbers and nodes of its open calls.
        """
        step._left = self.here.left
        self.here.step = step
        for call, node in nodes:
            step._open[call] = frozenset()
            self._follow(step, call, node)

    def forward(
        self,
        graph: G,
        arguments: Iterable[Any],
        outputs: Any,
        note: Any = None,
        backward_begins: torch_compat.BackwardBegins | None = None,
    ) -> None:
        """Note a call of `graph`; without a node of autograd, as in an evaluation, there is nothing to note.

        Args:
            graph: The graph.
            arguments: Its arguments.
            outputs: Its outputs.
            note: What to note of the call.
            backward_begins: Called before its backward.
        """
        node = torch_compat.compiled_backward(outputs)
        if node is None:
            return
        arguments = tuple(arguments)
        seen = torch_compat.sharded_now(arguments)
        with self._lock:
            step = self.current
            # An output that is an argument of a later call is recognised by its address, since views share that.
            made = frozenset(chain.from_iterable(map(_addresses, tensors_in(outputs))))
            passed = _passed(arguments, dict(step._open), step._values)
            parameters, leaves = _parameters(arguments), _leaves(arguments, step._leaves)
            call = step._add(graph, passed, note, made, parameters, leaves)
            step._given[call] = len(arguments)
            if seen is not None:
                step.seen.sharded[Turn.FORWARD, call] = seen
            step._outputs[call] = torch_compat.watched_storages(
                tensors_in(outputs), torch_compat.storages_of(arguments)
            )
        self._follow(step, call, node, backward_begins)

    def _follow(
        self, step: WatchedStep[G], call: int, node: Any, backward_begins: torch_compat.BackwardBegins | None = None
    ) -> None:
        graph, note = step.graphs[step.calls[call].graph], step.notes[call]
        step._nodes[call] = id(node)
        self.here.open[id(node)] = (weakref.ref(node), graph, note, step, call)
        self.follow(node, self.here.open, backward_begins)
        # The node also dies after a backward; `_end` takes the first of both.  Not at exit: nothing is learnt there.
        weakref.finalize(node, self._end, step, call, Turn.DROPPED).atexit = False

    def follow(
        self, node: Any, calls: dict[int, Any], backward_begins: torch_compat.BackwardBegins | None = None
    ) -> None:
        """Follow the backward of a call by its entry in `calls`, see `torch_compat.follow_backward`."""
        torch_compat.follow_backward(
            node, calls, self.ran_backward, self.begins_backward, backward_begins, self.failed_backward
        )

    def failed_backward(self, entry: tuple[Any, G, Any, Any, int], error: RuntimeError) -> None:
        """The backward of a call has failed."""
        self._fails(entry[1], error)

    def begins_forward(self) -> None:
        """A forward is about to run: note which outputs are gone by now."""
        with self._lock:
            step = self.current
            step._note_released((Turn.FORWARD, len(step.calls)))

    def begins_backward(self, entry: tuple[Any, Any, Any, Any, int]) -> None:
        """The backward of a watched call is about to run: note which outputs are gone by now."""
        _, _, _, step, call = entry
        with self._lock:
            step._note_released((Turn.BACKWARD, call))

    def ran_backward(self, entry: tuple[Any, Any, Any, Any, int], kept: bool, gradients: Sequence[Any] = ()) -> None:
        """The backward of a watched call has run and made `gradients`; if `kept`, its graph is kept for another one."""
        _, graph, _, step, call = entry
        if step is None:
            self._kept(graph, call)
            return
        # Its parameters are gathered, and its gradients whole, until autograd goes on behind the graph.
        forward = step.seen.sharded.get((Turn.FORWARD, call))
        seen = None if forward is None else torch_compat.sharded_now()
        with self._lock:
            step._note_made(call, gradients)
            if forward is not None and seen is not None and call in step._open:
                step.seen.sharded[Turn.KEPT if kept else Turn.BACKWARD, call] = replace(seen, own=forward.own)
            if kept and call in step._open:
                step.turns.append((Turn.KEPT, call))
        if not kept:
            self._end(step, call, Turn.BACKWARD)

    def _end(self, step: WatchedStep[G], call: int, turn: Turn) -> None:
        with self._lock:
            if call not in step._open:
                return
            del step._open[call]
            step.turns.append((turn, call))
            if step._over and turn is Turn.BACKWARD:
                # It was set aside too early: longer steps of this kind, as of many micro-batches, are found next time.
                self._patience = max(self._patience, min(2 * step._survived, MOST_PATIENCE))
            over = not step._open and not step._over
        if over:
            self._tell(step)

    def _tell(self, step: WatchedStep[G]) -> None:
        before = [one for one in step._left if one._open]
        if any(one._collections < COLLECTIONS for one in before):
            gc.collect()  # calls of an abandoned step may be open only because of reference cycles
            for one in before:
                one._collections += 1
        step.aside = tuple(call for one in before for call in one.open_calls)
        self._complete(step)


def _passed(
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
            addresses = _addresses(tensor) or frozenset({-1 - argument})
            maker = next((call for call, made in makers.items() if made & addresses), None)
            # Autograd adds up the gradients of a value that is passed twice.
            if addresses not in found:
                value = values.setdefault(addresses, len(values)) if maker is None else -1
                found[addresses] = Passed(torch_compat.num_bytes(tensor), maker, argument, value)
    return tuple(found.values())


def _parameters(arguments: Iterable[Any]) -> frozenset[int]:
    """The identities of the parameters that a call gives gradients to."""
    return frozenset(id(x) for x in arguments if isinstance(x, torch.nn.Parameter) and x.requires_grad)


def _leaves(arguments: Iterable[Any], numbers: dict[int, int]) -> tuple[Leaf, ...]:
    """Other leaves that a call gives gradients to; new ones are added to `numbers`, by their identity."""
    found: dict[int, Leaf] = {}
    for one in arguments:
        other = isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)
        if other and one.requires_grad and one.is_leaf:
            number = numbers.setdefault(id(one), 1 + max(numbers.values(), default=-1))
            found[number] = Leaf(number, torch_compat.num_bytes(one))
    return tuple(found.values())


def _addresses(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the tensor's memory, which views share; none if it has no memory of its own."""
    return frozenset(torch_compat.storages_of([tensor]))
