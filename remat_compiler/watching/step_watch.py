"""Follows the calls of compiled graphs by what autograd does, and tells `step_model` of it.

A call is followed by autograd's own node of its outputs: the node lives as long as what the forward saved, and tells
when the backward has run.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from remat_compiler import torch_compat
from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.running_step import Patience, RunningStep, ThreadSteps
from remat_compiler.step_model.step import Step
from remat_compiler.watching.forwards import forward_of
from remat_compiler.watching.open_calls import G, Here, OpenCall


class StepWatch(Generic[G]):
    """Follows the steps of each thread.

    Args:
        complete: Called with each complete step, on the thread that ended it, which may be autograd's own.
        kept: Called with the graph and the number of a call that is not watched, whose backward keeps its graph.
        fails: Called with the graph whose backward failed, and the error, before that goes on.

    Attributes:
        here: The calls of this thread.
    """

    def __init__(
        self,
        complete: Callable[[Step[G]], None],
        kept: Callable[[G, int], None] = lambda graph, call: None,
        fails: Callable[[G, RuntimeError], None] = lambda graph, error: None,
    ) -> None:
        self._complete, self._kept, self._fails = complete, kept, fails
        # Reentrant: within it, memory may be collected, and the finalizer of a node then comes to `_dropped`.
        self._lock = threading.RLock()
        self.here: Here[G] = Here(Patience())

    @property
    def current(self) -> RunningStep[G]:
        """The step that this thread is in; empty between steps."""
        return self.here.steps.now

    def begin(self) -> None:
        """A forward is about to run: the calls so far may make up a complete step, though older calls are open."""
        here = self.here
        with self._lock:
            step = self.current
            done = here.steps.completed()
            if done is None:
                return
            self._set_aside(step)
        # Without the lock: whoever is told may take other locks.
        self._tell(here.steps, done)

    def _set_aside(self, step: RunningStep[G]) -> None:
        """Take the open calls of a step off the table: the next step begins without them."""
        # A function of its own: no name of a node may outlive it, or the collection that follows would not free that.
        # Their backward is followed by a table of their own: it tells if the calls were set aside too early.
        aside: dict[int, OpenCall[G]] = {}
        for key, one in tuple(self.here.open.items()):
            if one.step is step:
                self.here.open.pop(key, None)
                node = one.node()
                if node is not None:
                    aside[key] = one
                    self.follow(node, aside)

    def go_on_with(self, step: Step[G], nodes: Iterable[tuple[int, Any]]) -> None:
        """Watch a step from its middle on.

        Args:
            step: The step so far.
            nodes: The numbers and nodes of its open calls.
        """
        followed = dict(nodes)
        running = self.here.steps.go_on_with(step, followed)
        for call, node in followed.items():
            self._follow(running, call, node)

    def forward(
        self,
        graph: G,
        arguments: Iterable[Any],
        outputs: Any,
        memory: GraphMemory | None = None,
        backward_begins: torch_compat.BackwardBegins | None = None,
    ) -> None:
        """Note a call of `graph`; without a node of autograd, as in an evaluation, there is nothing to note.

        Args:
            graph: The graph.
            arguments: Its arguments.
            outputs: Its outputs.
            memory: Its memory at these sizes.
            backward_begins: Called before its backward.
        """
        node = torch_compat.compiled_backward(outputs, arguments)
        if node is None:
            return
        event = forward_of(graph, memory, tuple(arguments), outputs)
        with self._lock:
            step = self.current
            call = step.forward(event)
        self._follow(step, call, node, backward_begins)

    def _follow(
        self, running: RunningStep[G], call: int, node: Any, backward_begins: torch_compat.BackwardBegins | None = None
    ) -> None:
        graph, memory, here = running.step.graph_of(call), running.step.memories[call], self.here
        here.open[id(node)] = OpenCall(weakref.ref(node), graph, memory, running, call)
        self.follow(node, here.open, backward_begins)
        # The node also dies after a backward; the first of both counts.  Not at exit: nothing is learnt there.
        weakref.finalize(node, self._dropped, running, call).atexit = False

    def follow(
        self, node: Any, calls: dict[int, Any], backward_begins: torch_compat.BackwardBegins | None = None
    ) -> None:
        """Follow the backward of a call by its entry in `calls`, see `torch_compat.follow_backward`."""
        torch_compat.follow_backward(
            node, calls, self.ran_backward, self.begins_backward, backward_begins, self.failed_backward
        )

    def failed_backward(self, one: OpenCall[G], error: RuntimeError) -> None:
        """The backward of a call has failed."""
        self._fails(one.graph, error)

    def begins_forward(self) -> None:
        """A forward is about to run: note which outputs are gone by now."""
        with self._lock:
            self.current.begins_forward()

    def begins_backward(self, one: OpenCall[G]) -> None:
        """The backward of a watched call is about to run: note which outputs are gone by now."""
        if one.step is not None:
            with self._lock:
                one.step.begins(Event(Turn.BACKWARD, one.call))

    def ran_backward(self, one: OpenCall[G], kept: bool, gradients: Sequence[Any] = ()) -> None:
        """The backward of a call has run and made `gradients`; if `kept`, its graph is kept for another one."""
        if one.step is None:
            self._kept(one.graph, one.call)
            return
        # Its parameters are gathered, and its gradients whole, until autograd goes on behind the graph.
        seen = torch_compat.sharded_now()
        with self._lock:
            over = one.step.backward(one.call, gradients, seen, kept=kept)
        if over:
            self._tell(one.step.thread, one.step.step)

    def _dropped(self, running: RunningStep[G], call: int) -> None:
        with self._lock:
            over = running.drop(call)
        if over:
            self._tell(running.thread, running.step)

    def _tell(self, steps: ThreadSteps[G], step: Step[G]) -> None:
        if steps.collects():
            gc.collect()
        steps.note_aside(step)
        self._complete(step)
