"""The step that a thread is in, as an automaton: it takes what happens, and knows what is open and when it is over.

    forward ──► open ──┬─ backward that keeps the graph ──► open
                       ├─ backward ──► over
                       └─ let go of ──► over

A step is over once none of its calls is open.  A call that stays open because the caller keeps its output does not keep
later steps from being complete: it is set aside once it has outlived a step that made the same call again, or
`PATIENCE` steps, more once that was too early:

    f ───────────────────────────────────────────► kept
       f   g   backward g   backward f │ f   g   …
    ◄────────── one step ────────────► ◄── the next one begins here, with the first call set aside
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.forward import Forward, Numbering
from remat_compiler.step_model.sharding import Seen
from remat_compiler.step_model.step import HeldCall, Step

G = TypeVar("G")

PATIENCE = 3
"""Steps that an open call may outlive before it counts as kept, if the same call is not made again, at first."""
MOST_PATIENCE = 64
"""The same once calls were set aside too early."""
COLLECTIONS = 3
"""Garbage collections for one step with open calls; more are not tried, since each takes as long as many steps."""


@dataclass(slots=True)
class Patience:
    """How many steps an open call may outlive, see `PATIENCE`.

    Attributes:
        steps: The number.
    """

    steps: int = PATIENCE

    def was_too_little(self, survived: int) -> None:
        """A call that was set aside after so many steps belonged to its step: longer ones are found next time."""
        self.steps = max(self.steps, min(2 * survived, MOST_PATIENCE))


class RunningStep(Generic[G]):
    """The step that a thread is in, or one that is over although calls of it are open.

    Args:
        thread: The steps of its thread.
        step: The step so far, if it is watched from its middle on.
        open_calls: Its calls that are open now.

    Attributes:
        step: The step so far.
        thread: The steps of its thread.
        over: Whether its open calls were set aside.
    """

    def __init__(self, thread: ThreadSteps[G], step: Step[G] | None = None, open_calls: Iterable[int] = ()) -> None:
        self.step: Step[G] = Step() if step is None else step
        self.over = False
        self.thread = thread
        # Addresses of the outputs of each open call.
        self._open: dict[int, frozenset[int]] = {call: frozenset() for call in open_calls}
        # Whether the outputs of a call are gone, where they were not so far.
        self._gone: dict[int, Callable[[], bool]] = {}
        self._argument_counts: dict[int, int] = {}
        self._numbers = Numbering(self.step.calls)
        # The calls that were open when the last step beside them was found, where its turns ended, and how many were.
        self._kept: frozenset[int] = frozenset()
        self._found_until = 0
        self._survived = 0

    @property
    def open_calls(self) -> tuple[int, ...]:
        """The calls that hold what their forward saved, in the order of their forwards."""
        # At once: autograd's thread may end a call meanwhile.
        return tuple(self._open)

    @property
    def held_calls(self) -> list[HeldCall[G]]:
        """The same with their graphs and memory."""
        return [HeldCall(self.step.graph_of(call), self.step.memories[call]) for call in self.open_calls]

    def forward(self, one: Forward[G]) -> int:
        """A call begins; return its number."""
        passed, leaves = self._numbers.passed(one.received, self._open), self._numbers.leaves(one.leaves)
        call = self.step.add(one.graph, one.memory, one.parameters, passed, leaves)
        self._open[call], self._gone[call], self._argument_counts[call] = one.made, one.gone, one.arguments
        if one.seen is not None:
            self.step.seen.sharded[Event(Turn.FORWARD, call)] = one.seen
        return call

    def begins(self, event: Event) -> None:
        """A forward or backward is about to run: note which outputs are gone by now."""
        for call in [call for call, gone in self._gone.items() if gone()]:
            del self._gone[call]
            self.step.seen.released[call] = event

    def begins_forward(self) -> None:
        """The forward of the next call is about to run."""
        self.begins(Event(Turn.FORWARD, len(self.step.calls)))

    def backward(self, call: int, gradients: Sequence[Any] = (), seen: Seen | None = None, *, kept: bool) -> bool:
        """The backward of a call has run.

        Args:
            call: The call.
            gradients: Its results by argument, `None` for no gradient.
            seen: What sharded modules held.
            kept: Whether its graph is kept for another backward.

        Returns:
            Whether the step is over by that.
        """
        one, turn = self.step.calls[call], Turn.KEPT if kept else Turn.BACKWARD
        if one.passed and len(gradients) == self._argument_counts.get(call):
            # A value that is only compared gets none.
            made = tuple(passed for passed in one.passed if gradients[passed.argument] is not None)
            self.step.calls[call] = replace(one, passed=made)
        if call not in self._open:
            return False
        forward = self.step.seen.sharded.get(Event(Turn.FORWARD, call))
        if forward is not None and seen is not None:
            self.step.seen.sharded[Event(turn, call)] = replace(seen, own=forward.own)
        if kept:
            self.step.turns.append(Event(turn, call))
            return False
        return self._end(call, turn)

    def drop(self, call: int) -> bool:
        """What a call saved is gone, if its backward has not run; whether the step is over by that."""
        return call in self._open and self._end(call, Turn.DROPPED)

    def _end(self, call: int, turn: Turn) -> bool:
        del self._open[call]
        self.step.turns.append(Event(turn, call))
        if self.over and turn is Turn.BACKWARD:
            self.thread.patience.was_too_little(self._survived)
        return not self._open and not self.over

    def completed(self) -> Step[G] | None:
        """The step that ran after the open calls were made; `None` if none did, or if they may belong to it.

        Asked before a forward: it counts how many steps the calls have outlived.
        """
        kept, turns = frozenset(self._open), self.step.turns
        if not kept:
            return None  # the end of its last call told of the step
        # Only what came after the last turn of an open call, and after the step found last time, can be a new step.
        first = 1 + max(i for i, (_, call) in enumerate(turns) if call in kept)
        turns = turns[max(first, self._found_until if kept == self._kept else 0) :]
        inside = {call for turn, call in turns if turn is Turn.FORWARD}
        # A backward of an earlier call is one of the step that goes on, as where micro-batches overlap: f f b f b …
        trained = {self.step.key(call) for turn, call in turns if turn is Turn.BACKWARD and call in inside}
        keeps = {call for turn, call in self.step.turns if turn is Turn.KEPT}
        if not trained:
            # No call came and went.  With graphs that are all kept for another backward, the step may still be over.
            return self._part(self.step.turns) if kept <= keeps else None
        self._survived = self._survived + 1 if kept == self._kept else 1
        self._kept, self._found_until = kept, len(self.step.turns)
        # Open while the same call is made again: the caller keeps its output.  Otherwise it may belong to the step, as
        # that of a generator which waits for its critic, until it has outlived several.
        again = all(call in keeps or self.step.key(call) in trained for call in kept)
        if not again and self._survived < self.thread.patience.steps:
            return None
        return self._part([event for event in turns if event.call in inside])

    def _part(self, turns: Sequence[Event]) -> Step[G]:
        """A new step from some turns; turns of calls whose forward is not among them are left out."""
        found: Step[G] = Step()
        numbers: dict[int, int] = {}
        for turn, call in turns:
            if turn is Turn.FORWARD:
                old, step = self.step.calls[call], self.step
                # Calls outside of the part have no number in it: gradients go to them as to eager operators.
                passed = tuple(replace(one, to=None if one.to is None else numbers.get(one.to)) for one in old.passed)
                parameters = step.parameters[step.key(call)]
                numbers[call] = found.add(step.graph_of(call), step.memories[call], parameters, passed, old.leaves)
            elif call in numbers:
                found.turns.append(Event(turn, numbers[call]))
        found.seen = self.step.seen.renumbered(numbers)
        return found


class ThreadSteps(Generic[G]):
    """The steps of one thread, one after another: the one that runs, and those that are over although calls are open.

    Args:
        patience: That of all threads.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._now: RunningStep[G] = RunningStep(self)
        # Steps that are over, but have open calls, and the collections that were made for each.
        self._left: dict[RunningStep[G], int] = {}

    @property
    def now(self) -> RunningStep[G]:
        """The step that the thread is in; empty between steps."""
        if self._now.over or (self._now.step.calls and not self._now.open_calls):
            self._left = {one: times for one, times in self._left.items() if one.open_calls}
            self._now = RunningStep(self)
        return self._now

    def go_on_with(self, step: Step[G], open_calls: Iterable[int]) -> RunningStep[G]:
        """Be in the middle of a step from now on; nothing is told of the present one any more."""
        self._now.over = True
        self._now = RunningStep(self, step, open_calls)
        return self._now

    def completed(self) -> Step[G] | None:
        """A step that is complete before a forward although calls are open, which are then set aside."""
        running = self.now
        done = running.completed()
        if done is not None:
            running.over = True
            self._left[running] = 0
        return done

    def collects(self) -> bool:
        """Whether to collect garbage, since calls that were set aside may be open only because of reference cycles.

        It counts: for each step only so often.
        """
        # A copy: this may be autograd's thread.
        before = {one: times for one, times in tuple(self._left.items()) if one.open_calls}
        collects = any(times < COLLECTIONS for times in before.values())
        if collects:
            self._left.update({one: times + 1 for one, times in before.items()})
        return collects

    def note_aside(self, step: Step[G]) -> None:
        """Note with a step that is complete which calls were set aside before, and are still open."""
        step.aside = tuple(held for one in tuple(self._left) for held in one.held_calls)
