"""Which compiled graphs one training step runs, learnt from the calls themselves.

A step begins with a forward call while no other is open, and is complete when each of its calls has run backward or
was let go of.  Calls are followed by autograd's own node behind their outputs: it lives as long as what the forward
saved, and tells when the backward has run.

A call that stays open, since the caller keeps its output, does not keep the steps behind it from being complete: it is
set aside once it has outlived a step that made the same call again, or `PATIENCE` steps:

    f ───────────────────────────────────────────► kept
       f   g   backward g   backward f │ f   g   …
    ◄────────── one step ────────────► ◄── the next one begins here, with the first call set aside
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.simulate.step_peak import Call, Passed, Turn

G = TypeVar("G")

PATIENCE = 3
"""Steps that a call may outlive before it is taken to be kept, where the same call is not made again."""
COLLECTIONS = 3
"""Times that what a step left open is given to the garbage collector, which takes as long as many small steps."""


@dataclass(slots=True, eq=False)
class WatchedStep(Generic[G]):
    """The calls of one step.

    Attributes:
        graphs: The distinct graphs, in the order of their first calls.
        calls: The calls in order; each names its graph by its position in `graphs`.
        turns: What happened, in order.
        notes: What `forward` was told of each call.
        aside: Calls of earlier steps that were open when this one ended, and what was noted of them.
    """

    graphs: list[G] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: list[tuple[Turn, int]] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    aside: tuple[tuple[G, Any], ...] = ()
    _open: dict[int, frozenset[int]] = field(default_factory=dict)
    _nodes: dict[int, int] = field(default_factory=dict)
    _leaves: dict[tuple[int, frozenset[int]], int] = field(default_factory=dict)
    _values: dict[frozenset[int], int] = field(default_factory=dict)
    _left: list[WatchedStep[G]] = field(default_factory=list)
    _over: bool = False
    _base: tuple[frozenset[int], int] = (frozenset(), 0)
    _survived: int = 0
    _collections: int = 0

    @property
    def open_calls(self) -> list[tuple[G, Any]]:
        """The graph of each call that holds what its forward saved, with what was noted of the call."""
        return [(self.graphs[self.calls[call].graph], self.notes[call]) for call in tuple(self._open)]

    def _add(
        self, graph: G, passed: tuple[Passed, ...], note: Any, addresses: frozenset[int], leaves: frozenset[int]
    ) -> int:
        """One more call, which is open; its number."""
        call = len(self.calls)
        position = next((i for i, known in enumerate(self.graphs) if known is graph), len(self.graphs))
        if position == len(self.graphs):
            self.graphs.append(graph)
        others = sum(of_graph == position for of_graph, _ in self._leaves)
        self.calls.append(Call(position, passed, self._leaves.setdefault((position, leaves), others)))
        self.turns.append((Turn.FORWARD, call))
        self.notes.append(note)
        self._open[call] = addresses
        return call

    def add(self, graph: G, note: Any) -> None:
        """One more call, of which nothing else is known."""
        self._add(graph, (), note, frozenset(), frozenset({-1 - len(self.calls)}))

    def _completed(self) -> WatchedStep[G] | None:
        """The step that ran since all calls were made that are open now; `None` where none did, or these belong to it.

        To be asked before a forward.
        """
        kept = frozenset(self._open)
        if not kept:
            return None
        first = 1 + max(i for i, (_, call) in enumerate(self.turns) if call in kept)
        first = max(first, self._base[1] if kept == self._base[0] else 0)
        turns = self.turns[first:]
        inside = {call for _, call in turns}
        trained = {self._key(call) for turn, call in turns if turn is Turn.BACKWARD}
        if not trained:
            return self if all((Turn.KEPT, call) in self.turns for call in kept) else None
        self._survived = self._survived + 1 if kept == self._base[0] else 1
        self._base = (kept, len(self.turns))
        again = all(self._key(call) in trained or (Turn.KEPT, call) in self.turns for call in kept)
        if not again and self._survived < PATIENCE:
            return None
        return self._part([turn for turn in turns if turn[1] in inside and turn[1] not in kept])

    def _key(self, call: int) -> tuple[int, int]:
        """What makes two calls equal: the graph, which may serve several modules, and the parameters."""
        return self.calls[call].graph, self.calls[call].leaves

    def _part(self, turns: list[tuple[Turn, int]]) -> WatchedStep[G]:
        """A step of its own of some turns, each call with its forward."""
        found: WatchedStep[G] = WatchedStep()
        numbers: dict[int, int] = {}
        for turn, call in turns:
            if turn is Turn.FORWARD:
                old, graph = self.calls[call], self.graphs[self.calls[call].graph]
                passed = tuple(replace(one, to=None if one.to is None else numbers.get(one.to)) for one in old.passed)
                leaves = frozenset({old.leaves})
                numbers[call] = found._add(graph, passed, self.notes[call], frozenset(), leaves)
            elif call in numbers:
                found.turns.append((turn, numbers[call]))
        found._open.clear()
        return found


class Here(threading.local):
    """What a thread is in the middle of.

    Attributes:
        open: By the identity of its node, each call whose backward has not run: the node, the graph, a note, and where
            the call is watched in full its step and number.
        known: The place within a known step that the latest call came to, see `known_steps`.
        step: The step that is watched.
        left: Steps that are over, of which calls are open still.
    """

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, Any, Any, Any, int]] = {}
        self.known: Any = None
        self.step: WatchedStep[Any] = WatchedStep()
        self.left: list[WatchedStep[Any]] = []

    def forget_dropped(self) -> None:
        """Let go of calls whose outputs nobody has any more."""
        for key, (node, *_) in tuple(self.open.items()):
            if node() is None:
                self.open.pop(key, None)


class StepWatch(Generic[G]):
    """Follows the steps of each thread.

    Args:
        complete: Is told of each complete step, on the thread that ended it (autograd's own, perhaps).
    """

    def __init__(self, complete: Callable[[WatchedStep[G]], None]) -> None:
        self._complete = complete
        self._lock = threading.RLock()
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
        """A forward is about to run: what is behind it may be a step, though calls before that are open."""
        with self._lock:
            step = self.current
            done = step._completed()
            if done is None:
                return
            step._over = True
            self.here.left.append(step)
            if done is not step:
                done._left = self.here.left
            for key in step._nodes.values():
                self.here.open.pop(key, None)
        self._tell(done)

    def go_on_with(self, step: WatchedStep[G], nodes: Iterable[tuple[int, Any]]) -> None:
        """Watch a step from its middle on.

        Args:
            step: What has run of it.
            nodes: Its open calls, and their nodes.
        """
        step._left = self.here.left
        self.here.step = step
        for call, node in nodes:
            step._open[call] = frozenset()
            self._follow(step, call, node)

    def forward(self, graph: G, arguments: Iterable[Any], outputs: Any, note: Any = None) -> None:
        """`graph` was called; nothing is noted of a call that autograd does not follow."""
        node = torch_compat.compiled_backward(outputs)
        if node is None:
            return
        arguments = tuple(arguments)
        with self._lock:
            step = self.current
            made = frozenset(chain.from_iterable(map(_addresses, tensors_in(outputs))))
            passed = _passed(arguments, dict(step._open), step._values)
            call = step._add(graph, passed, note, made, _leaves(arguments))
        self._follow(step, call, node)

    def _follow(self, step: WatchedStep[G], call: int, node: Any) -> None:
        graph, note = step.graphs[step.calls[call].graph], step.notes[call]
        step._nodes[call] = id(node)
        self.here.open[id(node)] = (weakref.ref(node), graph, note, step, call)
        torch_compat.follow_backward(node, self.here.open, self.ran_backward)
        weakref.finalize(node, self._end, step, call, Turn.DROPPED).atexit = False

    def ran_backward(self, entry: tuple[Any, Any, Any, Any, int], kept: bool) -> None:
        """The backward of a watched call has run; its graph is perhaps kept for another one."""
        _, _, _, step, call = entry
        if not kept:
            self._end(step, call, Turn.BACKWARD)
            return
        with self._lock:
            if call in step._open:
                step.turns.append((Turn.KEPT, call))

    def _end(self, step: WatchedStep[G], call: int, turn: Turn) -> None:
        with self._lock:
            if call not in step._open:
                return
            del step._open[call]
            step.turns.append((turn, call))
            over = not step._open and not step._over
        if over:
            self._tell(step)

    def _tell(self, step: WatchedStep[G]) -> None:
        before = [one for one in step._left if one._open]
        if any(one._collections < COLLECTIONS for one in before):
            gc.collect()  # what is left of a step that was given up may only wait for that
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
        makers: Where in memory each open call left its outputs.
        values: The number of each value that no graph made, by where it is in memory; grows.
    """
    found: dict[frozenset[int], Passed] = {}
    for argument, tensor in enumerate(arguments):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
            addresses = _addresses(tensor) or frozenset({-1 - argument})
            maker = next((call for call, made in makers.items() if made & addresses), None)
            if addresses not in found:
                value = values.setdefault(addresses, len(values)) if maker is None else -1
                found[addresses] = Passed(torch_compat.num_bytes(tensor), maker, argument, value)
    return tuple(found.values())


def _leaves(arguments: Iterable[Any]) -> frozenset[int]:
    """Which parameters and other leaves a call gives gradients to."""
    tensors = (x for x in arguments if isinstance(x, torch.Tensor))
    return frozenset(id(tensor) for tensor in tensors if tensor.requires_grad and tensor.is_leaf)


def _addresses(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the tensor's memory, which views share; none where it has no memory of its own."""
    return frozenset(part.untyped_storage().data_ptr() for part in torch_compat.dense_parts(tensor))
