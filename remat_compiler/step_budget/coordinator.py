"""What is known of the training steps that share budgets: which calls are open, which graphs still wait to be known.

One object for all threads of a process.  It follows the calls of planned graphs only as long as there is something to
learn of one of them; a step that is complete is left to the next call of its graphs, to be decided about there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from remat_compiler.options import BudgetKind, RematOptions
from remat_compiler.simulate.step_peak import GraphMemory, Turn
from remat_compiler.step_budget.known_steps import Place, Placed, is_among, is_known, learn, until
from remat_compiler.step_budget.step_watch import PATIENCE, StepWatch, WatchedStep


class Coordinated(Placed, Protocol):
    """A planned graph, as far as its steps are concerned.

    Attributes:
        options: The user's options.
        frame: The number of its function among Dynamo's, or `None` where Dynamo did not compile it.
        has_part: Whether it has a part of the budget until its step is known.
        waits: Whether what came before its first call was perhaps not watched yet.
        aside_bytes: Bytes of outputs of earlier steps, beside which the budget was decided.
        steps: The steps that it is known to be part of.
        pending: A complete step about which nothing was decided yet.
        steps_without: Steps of other graphs that were complete since it ran.
    """

    options: RematOptions
    frame: int | None
    waits: bool
    aside_bytes: int
    steps: list[WatchedStep[Any]]
    pending: WatchedStep[Any] | None
    steps_without: int

    @property
    def has_part(self) -> bool:
        """See above."""
        ...

    def settle(self) -> None:
        """Nothing more is to be learnt of the steps so far."""
        ...

    def belongs_to(self, step: WatchedStep[Any]) -> None:
        """The budget holds for such steps."""
        ...

    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from what is noted of it."""
        ...


G = TypeVar("G", bound=Coordinated)


class StepCoordinator(Generic[G]):
    """Follows the steps of planned graphs.

    Args:
        decide: Decides about a complete step, before the next call of one of its graphs; see `replan.decide`.

    Attributes:
        watch: The calls of the step that each thread is in.
        unsettled: The graphs of which there is something to learn, without keeping them; all calls are watched while
            there are any.
    """

    def __init__(self, decide: Callable[[WatchedStep[G]], None]) -> None:
        self.decide = decide
        self.watch: StepWatch[G] = StepWatch(self._complete)
        self.unsettled: set[ref[G]] = set()
        self._whole_steps: set[int] = set()

    def follow(self, graph: G) -> None:
        """There is something to learn of `graph`."""
        self.unsettled.add(ref(graph, self.unsettled.discard))

    def leave_out(self, graph: G) -> None:
        """There is nothing to learn of `graph` any more, as far as is known."""
        self.unsettled.discard(ref(graph))

    def unsettled_graphs(self) -> list[G]:
        """The graphs of which there is something to learn."""
        return [graph for one in tuple(self.unsettled) if (graph := one()) is not None]

    def was_whole_step(self, frame: int) -> bool:
        """Whether a function's graph made up a whole training step by itself when it last ran."""
        return frame in self._whole_steps

    def forget(self, frame: int) -> None:
        """Dynamo compiles this function for the first time: it counts functions anew after `torch._dynamo.reset`."""
        self._whole_steps.discard(frame)

    def catch_up(self) -> None:
        """Watch the step of this thread in full from now on, of which calls may be open that were no surprise."""
        here = self.watch.here
        here.forget_dropped()
        entries = tuple(here.open.values())
        known = {entry[4]: (entry, node) for entry in entries if entry[3] is None and (node := entry[0]()) is not None}
        if not known:
            return
        notes = {call: entry[1].noted_memory(entry[2]) for call, (entry, _) in known.items()}
        if self.watch.current.calls or not isinstance(here.known, Place):
            graphs = [entry[1] for entry, _ in known.values()]
            step = WatchedStep[G]()
            for graph, note in zip(graphs, notes.values()):
                step.add(graph, note)
            self.watch.go_on_with(step, enumerate(node for _, node in known.values()))
            return
        self.watch.go_on_with(until(here.known, notes), ((call, node) for call, (_, node) in known.items()))

    def open_calls_sharing(self, options: RematOptions) -> list[tuple[G, GraphMemory | None]]:
        """The open calls in the step of this thread that share one budget: those of graphs with the same options."""
        self.catch_up()
        return [
            (graph, memory) for graph, memory in self.watch.current.open_calls if share_budget(graph.options, options)
        ]

    def held_bytes(self, options: RematOptions) -> int:
        """What these calls hold, as far as it is known, unless the budget was measured meanwhile: it is less that."""
        if options.memory_budget.kind is not BudgetKind.BYTES:
            return 0
        return sum(memory.held_bytes for _, memory in self.open_calls_sharing(options) if memory is not None)

    def _complete(self, step: WatchedStep[G]) -> None:
        """Leave a complete step to the next call of its graphs: this may be autograd's thread, amid a backward."""
        calls = step.calls
        if len(calls) == 1 and not any(turn in (Turn.BACKWARD, Turn.KEPT) for turn, _ in step.turns):
            # No backward ran: the call was given up, or an evaluation.  It does not tell how training steps go on.
            return
        self._leave_out_idle(step.graphs)
        aside_bytes = sum(memory.held_bytes for _, memory in step.aside if memory is not None)
        decided = is_known(step) or is_among(step, step.graphs[0].steps)
        if decided and all(aside_bytes <= graph.aside_bytes for graph in step.graphs):
            for graph in step.graphs:
                if graph.pending is None:
                    graph.settle()
            return
        frames = {graph.frame for graph in step.graphs if graph.frame is not None}
        if len(calls) == 1:
            self._whole_steps |= frames
            if self._needs_no_decision(step):
                return
        else:
            self._whole_steps -= frames
        for graph in step.graphs:
            graph.pending = step

    def _needs_no_decision(self, step: WatchedStep[G]) -> bool:
        """Whether a step of one call leaves nothing to share; then what there is to learn of it is learnt."""
        alone = step.graphs[0]
        if alone.waits:
            # What came before it was perhaps not watched yet.
            alone.waits = False
            return True
        simple = not step.aside and all(turn is not Turn.KEPT for turn, _ in step.turns)
        fraction = alone.options.memory_budget.kind is BudgetKind.FRACTION
        if alone.has_part or not simple or (fraction and alone.steps):
            return False
        # Where Dynamo compiles it anew for other sizes, there is no next call.
        alone.belongs_to(step)
        learn(step)
        alone.settle()
        return True

    def _leave_out_idle(self, graphs: Sequence[G]) -> None:
        """A step of these graphs is complete: nothing is to be learnt soon of others that did not run for a while."""
        for graph in self.unsettled_graphs():
            graph.steps_without = 0 if graph in graphs else graph.steps_without + 1
            if graph.steps_without > PATIENCE:
                self.leave_out(graph)


def share_budget(one: RematOptions, other: RematOptions) -> bool:
    """Whether graphs with these options share their budget: where they dump does not count."""
    return one is other or replace(one, dump=None) == replace(other, dump=None)
