"""How a graph is called: by a few look-ups in known steps, else watched in full.

    call ─┬─ has a place in known steps, nothing is to be learnt ──► run, note the call
          └─ else: what is decided first ─► refused before? ─► checked ─► run, tell `step_watch` of it

What is decided, checked and looked for is the graph's own, in the methods that it overrides.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any, Protocol
from weakref import ref

from remat_compiler import torch_compat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import NOWHERE, Place
from remat_compiler.step_model.step import Step
from remat_compiler.watching.open_calls import OpenCall
from remat_compiler.watching.step_watch import StepWatch


class Dispatching(Protocol):
    """Chooses the code of each call, if sizes change.

    Attributes:
        latest: The use of the latest call, with its `variant` and its `memory`; `None` before the first.
    """

    latest: Any


class CalledGraph(ABC):
    """A graph that is called, and whose calls are followed.

    Args:
        compiled: Its compiled code.
        watch: Follows the calls of the process.
        unsettled: The graphs whose steps are not known yet: while there are any, all calls are watched in full.
        dispatch: Chooses the code if sizes change.

    Attributes:
        compiled: Its compiled code, which may be exchanged.
        completed_step: A complete step that is not decided about yet.
        places: Its calls in known steps, by the call before, `None` for the first one of a step.
        refusals: Its refused calls in other steps, likewise.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        watch: StepWatch[Any],
        unsettled: Collection[Any],
        dispatch: Dispatching | None = None,
    ) -> None:
        self.compiled = compiled
        self.completed_step: Step[Any] | None = None
        self.places: dict[Place | None, Place] = {}
        self.refusals: dict[Place | None, InfeasibleBudget] = {}
        self._watch, self._unsettled, self._dispatch = watch, unsettled, dispatch
        # Which output has the compiled graph's node for its `grad_fn`, and that node's class once a call was searched.
        self._output = 0
        self._registrations = torch_compat.hook_registrations()
        self._hooks_seen = self._registrations[0]
        self._kind: type[Any] | None = None

    @abstractmethod
    def decide_first(self) -> None:
        """Decide about steps that are complete before a call that takes no short cut."""

    @abstractmethod
    def look_at_hooks(self, arguments: Sequence[Any]) -> None:
        """Look at the hooks of a call's parameters, of which some were registered since the last look."""

    @abstractmethod
    def check(self, arguments: Sequence[Any]) -> None:
        """Check a call of an unknown step before it runs.

        Raises:
            InfeasibleBudget: It is refused.
        """

    @abstractmethod
    def look(self, arguments: Sequence[Any]) -> torch_compat.BackwardBegins | None:
        """Look at a call of a known step after its forward; what to call before its backward, `None` if nothing."""

    @abstractmethod
    def look_at_unknown(self, arguments: Sequence[Any], outputs: Any) -> torch_compat.BackwardBegins | None:
        """The same for a call of an unknown step."""

    @abstractmethod
    def fake_outputs(self, arguments: Sequence[Any]) -> Any:
        """The outputs of a call on fake tensors."""

    @abstractmethod
    def explain(self, error: RuntimeError, *, in_backward: bool = False) -> None:
        """Add a note to an error of its forward or backward if memory ran out."""

    @property
    @abstractmethod
    def memory_now(self) -> GraphMemory | None:
        """Its memory at the sizes of its latest call; `None` if that is not known."""

    @abstractmethod
    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from what is noted of it."""

    def look_again(self) -> None:
        """Have the next calls come by where they are looked at."""
        self._kind = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        try:
            # The fast path, a few dictionary look-ups, is for calls of known steps while nothing is to be learnt.
            here = self._watch.here
            calls = here.open
            # As `Here.before` says it.
            place = self.places.get(here.known if calls else None)
            if place is None or self._unsettled or len(calls) > place.most_open or self.completed_step is not None:
                return self._watched(arguments)
            if self._hooks_seen != self._registrations[0]:
                return self._watched(arguments)
            outputs = self._run(arguments)
            here.known = place
            kind = self._kind
            node: Any = None if kind is None else outputs[self._output].grad_fn
            # Every compiled function has a node class of its own: another variant, or exchanged code, has another one.
            if kind is None or not isinstance(node, kind):
                return self._found(arguments, outputs, place)
            note = self._dispatch and self._dispatch.latest
            # As `follow_backward` does it.  Without a step nobody is told of the backward, the entry only disappears.
            calls[id(node)] = OpenCall(ref(node), self, note, None, place.call)
            node._remat_calls = calls
            return outputs
        except RuntimeError as error:
            self.explain(error)
            raise

    def _run(self, arguments: Sequence[Any]) -> Any:
        """Run the compiled code; in a checkpointed region that is computed again, that of the region's forward."""
        if not torch_compat.may_be_in_region():
            return self.compiled(*arguments)
        return torch_compat.run_in_region(self, lambda: self.compiled(*arguments), self._latest_code, arguments)

    def _latest_code(self) -> Callable[..., Any]:
        latest = None if self._dispatch is None else self._dispatch.latest
        return self.compiled if latest is None else latest.variant.compiled

    def _found(self, arguments: Sequence[Any], outputs: Any, place: Place) -> Any:
        """Note a call of a known step after searching its outputs for the node of the compiled graph."""
        node = torch_compat.compiled_backward(outputs, arguments)
        # While something is looked for, calls must come this way: the fast path stays off without a kind.
        looking = self.look(arguments) if self._kind is None else None
        if node is not None:
            direct = [i for i, value in enumerate(outputs) if getattr(value, "grad_fn", None) is node]
            if direct and looking is None:
                self._output, self._kind = direct[0], type(node)
            if looking is not None:
                torch_compat.note_outputs(node, arguments, outputs)
            calls, note = self._watch.here.open, self._dispatch and self._dispatch.latest
            calls[id(node)] = OpenCall(ref(node), self, note, None, place.call)
            self._watch.follow(node, calls, looking)
        return outputs

    def _watched(self, arguments: Sequence[Any]) -> Any:
        """Run the forward in a step that is not known yet, or may turn out to be another one."""
        # On paper all tensors are fake, and their steps are the user's.
        if not torch_compat.is_on_paper() and torch_compat.any_fake(arguments):
            return self.fake_outputs(arguments)
        here = self._watch.here
        # First: calls that nobody can run backward any more must not count as open below.
        here.forget_dropped()
        if self._hooks_seen != self._registrations[0]:
            self._hooks_seen = self._registrations[0]
            self.look_at_hooks(arguments)
        self.decide_first()
        place = self._place()
        if place is None:
            self._refuse_again()
        if place is not None and not self._unsettled:
            # The decision, or the calls that were dropped, made this a known step after all.
            outputs = self._run(arguments)
            here.known = place
            return self._found(arguments, outputs, place)
        # An unknown step: it is watched in full from here, calls included that were open before.
        self.check(arguments)
        self._watch.begins_forward()
        outputs = self._run(arguments)
        looking = self.look_at_unknown(arguments, outputs)
        here.known = NOWHERE if place is None else place
        self._watch.forward(self, arguments, outputs, self.memory_now, looking)
        return outputs

    def _place(self) -> Place | None:
        """The place in known steps of the call that begins; `None` if it is in none of them."""
        here = self._watch.here
        place = self.places.get(here.before)
        # More open calls than ever at this place hold more than the budget was shared for.
        return None if place is None or len(here.open) > place.most_open else place

    def _refuse_again(self) -> None:
        """Raise the error again with which steps that make this call were refused."""
        here = self._watch.here
        if here.before in self.refusals:
            gc.collect()  # calls of the refused step may be open only because of reference cycles
            here.forget_dropped()
            error = self.refusals.get(here.before)
            if error is not None:
                # A copy has no traceback, whose frames would hold on to the step that failed.
                raise copy(error)
