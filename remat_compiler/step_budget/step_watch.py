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
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, TypeVar

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.step_budget.watched_step import (
    WatchedStep,
    addresses_of,
    leaves_of,
    parameters_of,
    passed_gradients,
)
from remat_compiler.step_model.events import Turn

G = TypeVar("G")

PATIENCE = 3
"""Steps that an open call may outlive before it counts as kept, if the same call is not made again, at first."""
MOST_PATIENCE = 64
"""The same once calls were set aside too early."""
COLLECTIONS = 3
"""Garbage collections for one step with open calls; more are not tried, since each takes as long as many steps."""


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
        if here.step.over or (here.step.calls and not here.step.open):
            here.left = [step for step in here.left if step.open]
            here.step = WatchedStep(left=here.left)
        return here.step

    def begin(self) -> None:
        """A forward is about to run: the calls so far may make up a complete step, though older calls are open."""
        with self._lock:
            step = self.current
            done = step.completed(self._patience)
            if done is None:
                return
            # Its open calls are set aside: the next step begins without them.
            step.over = True
            self.here.left.append(step)
            if done is not step:
                done.left = self.here.left
            aside: dict[int, Any] = {}
            for key in step.nodes.values():
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
        step.left = self.here.left
        self.here.step = step
        for call, node in nodes:
            step.open[call] = frozenset()
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
            made = frozenset(chain.from_iterable(map(addresses_of, tensors_in(outputs))))
            passed = passed_gradients(arguments, dict(step.open), step.value_numbers)
            parameters, leaves = parameters_of(arguments), leaves_of(arguments, step.leaf_numbers)
            call = step.add_call(graph, passed, note, made, parameters, leaves)
            step.argument_counts[call] = len(arguments)
            if seen is not None:
                step.seen.sharded[Turn.FORWARD, call] = seen
            step.outputs[call] = torch_compat.watched_storages(tensors_in(outputs), torch_compat.storages_of(arguments))
        self._follow(step, call, node, backward_begins)

    def _follow(
        self, step: WatchedStep[G], call: int, node: Any, backward_begins: torch_compat.BackwardBegins | None = None
    ) -> None:
        graph, note = step.graphs[step.calls[call].graph], step.notes[call]
        step.nodes[call] = id(node)
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
            step.note_released((Turn.FORWARD, len(step.calls)))

    def begins_backward(self, entry: tuple[Any, Any, Any, Any, int]) -> None:
        """The backward of a watched call is about to run: note which outputs are gone by now."""
        _, _, _, step, call = entry
        with self._lock:
            step.note_released((Turn.BACKWARD, call))

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
            step.note_made(call, gradients)
            if forward is not None and seen is not None and call in step.open:
                step.seen.sharded[Turn.KEPT if kept else Turn.BACKWARD, call] = replace(seen, own=forward.own)
            if kept and call in step.open:
                step.turns.append((Turn.KEPT, call))
        if not kept:
            self._end(step, call, Turn.BACKWARD)

    def _end(self, step: WatchedStep[G], call: int, turn: Turn) -> None:
        with self._lock:
            if call not in step.open:
                return
            del step.open[call]
            step.turns.append((turn, call))
            if step.over and turn is Turn.BACKWARD:
                # It was set aside too early: longer steps of this kind, as of many micro-batches, are found next time.
                self._patience = max(self._patience, min(2 * step.survived, MOST_PATIENCE))
            over = not step.open and not step.over
        if over:
            self._tell(step)

    def _tell(self, step: WatchedStep[G]) -> None:
        before = [one for one in step.left if one.open]
        if any(one.collections < COLLECTIONS for one in before):
            gc.collect()  # calls of an abandoned step may be open only because of reference cycles
            for one in before:
                one.collections += 1
        step.aside = tuple(call for one in before for call in one.open_calls)
        self._complete(step)
