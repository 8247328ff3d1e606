"""What a process knows of the training steps that share budgets: open calls, and graphs whose steps are not known yet.

One object serves all threads of a process.  It watches the calls of planned graphs only as long as there is something
to learn of one of them.  The decision about a complete step is left to the next call of one of its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from remat_compiler import torch_compat
from remat_compiler.observer import observers
from remat_compiler.options import RematOptions
from remat_compiler.step_budget.calls_alike import is_rehearsal
from remat_compiler.step_model.events import Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import NOWHERE, Placed, is_among, is_known, kept, learn, until
from remat_compiler.step_model.running_step import PATIENCE
from remat_compiler.step_model.step import HeldCall, Step
from remat_compiler.watching.step_watch import StepWatch


class Coordinated(Placed, Protocol):
    """The coordinator's view of a planned graph.

    Attributes:
        options: The user's options.
        frame: Dynamo's number of its function, or `None` if Dynamo did not compile it.
        is_planned_alone: Whether its plan is right if it makes up the step alone.
        awaits_earlier_graphs: Whether calls before its first one may not have been watched.
        aside_bytes: Bytes that open calls of earlier steps held when the budget was decided.
        steps: The steps that it is known to be part of.
        completed_step: A complete step that is not decided about yet.
        steps_without: Number of complete steps of other graphs since it ran.
    """

    options: RematOptions
    frame: int | None
    awaits_earlier_graphs: bool
    aside_bytes: int
    steps: list[Step[Any]]
    completed_step: Step[Any] | None
    steps_without: int

    @property
    def is_planned_alone(self) -> bool:
        """See `Coordinated`."""
        ...

    def finalise(self) -> None:
        """End the learning about its steps so far."""
        ...

    def belongs_to(self, step: Step[Any]) -> None:
        """Note that the budget was decided for steps like this one."""
        ...

    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from its note."""
        ...

    def explain(self, error: RuntimeError, *, in_backward: bool = False) -> None:
        """Add a note to an error of its forward or backward if memory ran out."""
        ...


G = TypeVar("G", bound=Coordinated)


class StepCoordinator(Generic[G]):
    """Follows the steps of planned graphs.

    Args:
        decide: Decides about a complete step, before the next call of one of its graphs; see `replan.decide`.

    Attributes:
        watch: The calls of the step that each thread is in.
        unsettled: Weak references to the graphs whose steps are not known yet; all calls are watched while there are
            any.
    """

    def __init__(self, decide: Callable[[Step[G]], None]) -> None:
        self._decide = decide
        self.watch: StepWatch[G] = StepWatch(self._complete, self._kept, _failed)
        self.unsettled: set[ref[G]] = set()
        self._whole_steps: set[int] = set()

    def decide(self, step: Step[G]) -> None:
        """Decide about a complete step; see `replan.decide`."""
        if is_rehearsal(step):
            for graph in step.graphs:
                graph.completed_step = None
            return
        for observer in observers():
            observer.step_completes(step)
        self._decide(step)
        for observer in observers():
            observer.step_decided(step)

    def follow(self, graph: G) -> None:
        """Watch calls until the steps of `graph` are known."""
        # The callback removes the reference of a graph that Dynamo dropped: else all calls were watched for ever.
        self.unsettled.add(ref(graph, self.unsettled.discard))

    def leave_out(self, graph: G) -> None:
        """Stop watching for the steps of `graph`."""
        self.unsettled.discard(ref(graph))

    def unsettled_graphs(self) -> list[G]:
        """The graphs whose steps are not known yet."""
        return [graph for one in tuple(self.unsettled) if (graph := one()) is not None]

    def was_whole_step(self, frame: int) -> bool:
        """Whether a function's graph made up a whole training step by itself when it last ran."""
        return frame in self._whole_steps

    def forget(self, frame: int) -> None:
        """Forget a function's number, which Dynamo gives to another function after `torch._dynamo.reset`."""
        self._whole_steps.discard(frame)

    def catch_up(self) -> None:
        """Watch the step of this thread in full from now on; calls that were known and are open become part of it."""
        here = self.watch.here
        here.forget_dropped()
        live = [(one, node) for one in tuple(here.open.values()) if (node := one.node()) is not None]
        # Without a step in the entry: such calls went by the fast path.
        unwatched = [(one, node) for one, node in live if one.step is None]
        if not unwatched:
            return
        known = {one.call: (one, node) for one, node in unwatched}
        # A call that was kept from an earlier step may have the number of one of this step.
        clash = len(known) < len(unwatched)
        if clash or self.watch.current.step.calls or here.known in (None, NOWHERE):
            # Known and unknown calls are mixed: what ran between them is lost, only the open calls are certain.
            step = Step[G]()
            for one, _ in live:
                step.add(one.graph, one.memory)
            self.watch.go_on_with(step, enumerate(node for _, node in live))
            return
        memories = {call: one.memory for call, (one, _) in known.items()}
        self.watch.go_on_with(until(here.known, memories), ((call, node) for call, (_, node) in known.items()))

    def open_calls_sharing(self, options: RematOptions) -> list[HeldCall[G]]:
        """The open calls in this thread's step that share the budget of these options, with their memory."""
        self.catch_up()
        return [held for held in self.watch.current.held_calls if share_budget(held.graph.options, options)]

    def held_bytes(self, options: RematOptions) -> int:
        """Bytes that `open_calls_sharing` and sharded modules hold, as far as that is known.

        0 unless the budget is given in bytes.
        """
        # A budget that is measured on the device ("auto") is less these bytes already.
        if options.memory_budget.named_bytes is None:
            return 0
        sharded = torch_compat.sharded_now()
        gathered_bytes = 0 if sharded is None else sharded.during_bytes
        calls = self.open_calls_sharing(options)
        return gathered_bytes + sum(held.memory.held_bytes for held in calls if held.memory is not None)

    def _complete(self, step: Step[G]) -> None:
        """Leave a complete step to the next call of its graphs: this may be autograd's thread during a backward."""
        calls = step.calls
        if len(calls) == 1 and not any(turn in (Turn.BACKWARD, Turn.KEPT) for turn, _ in step.turns):
            # No backward ran: the call was abandoned or was an evaluation.  It says nothing about whether a training
            # step continues after this graph.
            return
        self._leave_out_idle(step.graphs)
        aside_bytes = sum(held.memory.held_bytes for held in step.aside if held.memory is not None)
        decided = is_known(step) or is_among(step, step.graphs[0].steps)
        # Decided with at least as much held by earlier steps: that decision still holds.
        if decided and all(aside_bytes <= graph.aside_bytes for graph in step.graphs):
            for graph in step.graphs:
                # `finalise` would drop a step that still waits for its decision.
                if graph.completed_step is None:
                    graph.finalise()
            return
        frames = {graph.frame for graph in step.graphs if graph.frame is not None}
        if len(calls) == 1:
            # Tells later compilations of the function, for other sizes, that no graphs follow.
            self._whole_steps |= frames
            if self._is_learnt_alone(step):
                return
        else:
            self._whole_steps -= frames
        for graph in step.graphs:
            graph.completed_step = step

    def _kept(self, graph: G, call: int) -> None:
        """Have the budget decided about anew if a call of known steps keeps its graph, which none of them does."""
        known = [place.step for place in graph.places.values() if place.call == call]
        if graph.completed_step is None and known and not any(map(_keeps_graphs, graph.steps)):
            graph.completed_step = kept(known[-1])

    def _is_learnt_alone(self, step: Step[G]) -> bool:
        """Whether a step of one call leaves nothing to share; if so, it is learnt here."""
        alone = step.graphs[0]
        if alone.awaits_earlier_graphs:
            # Calls before it may not have been watched: only the next step shows whether it really is alone.
            alone.awaits_earlier_graphs = False
            return True
        simple = not step.aside and not step.seen.sharded and not _keeps_graphs(step)
        # A fraction is one of each step's own peak: another kind of step needs a limit of its own.
        fraction = alone.options.memory_budget.part is not None
        if not alone.is_planned_alone or not simple or (fraction and alone.steps):
            return False
        # Here, not at the next call: if Dynamo compiles the function for other sizes, this graph has no next call.
        alone.belongs_to(step)
        learn(step)
        alone.finalise()
        return True

    def _leave_out_idle(self, graphs: Sequence[G]) -> None:
        """Leave out graphs that did not run in several complete steps, of which one with `graphs` is the latest."""
        # One graph that is never trained would keep all calls of the process on the slow path.
        for graph in self.unsettled_graphs():
            graph.steps_without = 0 if graph in graphs else graph.steps_without + 1
            if graph.steps_without > PATIENCE:
                self.leave_out(graph)


def _keeps_graphs(step: Step[Any]) -> bool:
    """Whether a backward in the step keeps its graph."""
    return any(turn is Turn.KEPT for turn, _ in step.turns)


def share_budget(one: RematOptions, other: RematOptions) -> bool:
    """Whether graphs with these options share their budget: all options are equal but those that change no plan."""
    return one is other or _planned_by(one) == _planned_by(other)


def _planned_by(options: RematOptions) -> RematOptions:
    return replace(options, dump=None, on_infeasible="error")


def _failed(graph: Coordinated, error: RuntimeError) -> None:
    """The backward of a call of `graph` has failed."""
    graph.explain(error, in_backward=True)
