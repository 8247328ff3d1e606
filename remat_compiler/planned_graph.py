"""What Dynamo calls for a graph that is trained, and what is learnt from the calls about its step.

The compiled code of a graph may be exchanged once a step is complete and its other graphs are known; until then it
keeps what is needed to compile it again.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import torch

from remat_compiler import torch_compat
from remat_compiler.changing_graph import ChangingGraph
from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.options import BudgetKind, RematOptions
from remat_compiler.partition import Partition
from remat_compiler.runtime.step_watch import StepWatch, WatchedStep
from remat_compiler.search import Attempt, Compile
from remat_compiler.simulate.whole_step import GraphMemory, Turn, memory_of


def follows_others(example_inputs: Sequence[Any]) -> bool:
    """Whether other differentiable operators made an input."""
    return any(isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf for x in example_inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How a graph is compiled again after Dynamo is done with it.

    Attributes:
        compile_: Compiles and checks one request.
        search: Compiles it under the whole budget, for a graph that turns out to be alone.
        context: What Dynamo knew of the graph.
    """

    compile_: Compile
    search: Callable[[], tuple[Attempt, int | None]]
    context: Callable[[], AbstractContextManager[None]]


class PlannedGraph:
    """What Dynamo calls for a graph that is trained: its compiled code, which may be exchanged after the first step.

    Args:
        attempt: What was compiled.
        options: The user's options.
        budget_bytes: The budget of the whole step in bytes, where it is known.
        keep: Reports and stores what a graph ends with: the try, its own budget, and a note for the user.
        recipe: How it is compiled again; `None` where it cannot be.
        decide: Decides about a complete step, before the next call of one of its graphs.
        example_inputs: Its inputs, as Dynamo gave them.
        has_part: Whether it has a part of the budget until its step is known; else it was taken to be alone.
        changing: What runs it, where its sizes change.
    """

    def __init__(
        self,
        attempt: Attempt,
        options: RematOptions,
        budget_bytes: int | None,
        keep: Callable[[Attempt, int | None, str], None],
        recipe: Recipe | None,
        decide: Callable[[WatchedStep[PlannedGraph]], None],
        example_inputs: Sequence[Any],
        *,
        has_part: bool,
        changing: ChangingGraph | None = None,
    ) -> None:
        self.compiled = attempt.compiled
        self.attempt: Attempt | None = attempt
        self.options = options
        self.budget_bytes = budget_bytes
        self.recipe = recipe
        self.has_part = has_part
        self.changing = changing
        self.waits = follows_others(example_inputs)
        self.pending: WatchedStep[PlannedGraph] | None = None
        # Whether others of a step run beside it: what it holds then is noted for graphs that Dynamo makes later.
        self.shares = False
        compilation = torch_compat.frame_compilation()
        self.frame = None if compilation is None else compilation.frame
        self._keep = keep
        self._decide = decide
        self._memory: GraphMemory | None = None
        _unsettled.add(self)

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        if not _unsettled and not self.shares:
            return self.compiled(*arguments)
        if torch_compat.any_fake(arguments):
            return self._run_on_fakes(arguments)
        if self.pending is not None:
            with _deciding:
                if self.pending is not None:
                    self._decide(self.pending)
        if _unsettled:
            self._check_room(arguments)
        outputs = self.compiled(*arguments)
        watch.forward(self, arguments, outputs, self.memory_now)
        return outputs

    def _run_on_fakes(self, arguments: Sequence[Any]) -> Any:
        """A call that only asks what the outputs look like is no part of a step."""
        answer = None if self.attempt is None else self.attempt.fake_outputs
        return self.compiled(*arguments) if answer is None else answer

    def _check_room(self, arguments: Sequence[Any]) -> None:
        """Before a call beside graphs that it does not share the budget with yet, where sizes change.

        Raises:
            InfeasibleBudget: It does not fit beside what they hold, and the options do not say to go on.
        """
        before, limit = open_beside(self.options), self.budget_bytes
        if limit is None or not any(graph.changing is not None for graph, _ in ((self, None), *before)):
            return
        held = held_now(self.options)
        if self.changing is not None and self in _unsettled:
            self.changing.make_room(limit, held)
        elif before and self.options.on_infeasible != "min":
            memory = self.memory if self.changing is None else self.changing.dispatch.memory_at(arguments)
            if memory is None or held + memory.peak_bytes <= limit:
                return
            gc.collect()  # what is left of a step that was refused may only wait for that
            held = held_now(self.options)
            if held + memory.peak_bytes > limit:
                reason = f"what {len(before)} graphs hold that ran before in the step"
                facts = BudgetFacts(asked=self.options.memory_budget.asked)
                raise InfeasibleBudget(limit, held + memory.peak_bytes, reason=reason, facts=facts)

    @property
    def memory(self) -> GraphMemory | None:
        """Its memory by itself, as checked, else as simulated; `None` where nothing is known."""
        if self.attempt is None:
            return self._memory
        if not self.attempt.check.unknown:
            return self.attempt.check.memory
        one = self.partition
        return None if one is None else memory_of(one.cut.problem.graph, one.cut.timeline)

    @property
    def memory_now(self) -> GraphMemory | None:
        """The same at the sizes of its latest call."""
        return self.memory if self.changing is None else self.changing.dispatch.memory_now or self.memory

    @property
    def partition(self) -> Partition | None:
        """What was decided; `None` for what a compiler's cache had, and once it is settled."""
        if self.changing is not None:
            return self.changing.first.partitions[0]
        partitions = () if self.attempt is None else self.attempt.partitions
        return partitions[0] if len(partitions) == 1 else None

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds, as far as it is known."""
        return 0 if self.partition is None else self.partition.cut.timeline.added_ns

    @property
    def unbudgeted(self) -> GraphMemory | None:
        """Its memory without a budget, as simulated where that is not what runs; `None` where nothing is known."""
        one = self.partition
        if one is None:
            return None
        if self.changing is not None:
            return self.changing.unbudgeted
        return self.memory if one.unchanged else memory_of(one.cut.problem.graph, one.before.timeline)

    def keep(self, own_budget: int | None, note: str = "") -> None:
        """Report and store what it runs."""
        if self.attempt is not None:
            self._keep(self.attempt, own_budget, note)

    def plan_again(self) -> None:
        """Learn what was decided where a compiler's cache had the code; the code stays."""
        if self.recipe is not None and self.attempt is not None and self.partition is None:
            with self.recipe.context(), torch_compat.partitioner_always_runs():
                again = self.recipe.compile_(self.attempt.request, real=False)
            self.attempt = replace(self.attempt, partitions=again.partitions)

    def exchange(self, attempt: Attempt) -> None:
        """Run `attempt` from now on."""
        self.attempt, self.compiled = attempt, attempt.compiled

    def settle(self) -> None:
        """Nothing more is to be learnt; what was kept to compile again is let go."""
        self._memory = self.memory
        self.pending = self.recipe = self.attempt = None
        self._keep = _nothing
        _unsettled.discard(self)


def open_beside(options: RematOptions) -> list[tuple[PlannedGraph, GraphMemory | None]]:
    """The open calls in the step of this thread that share one budget: those of graphs with the same options."""
    return [(graph, memory) for graph, memory in watch.current.open_calls if have_one_budget(graph.options, options)]


def have_one_budget(one: RematOptions, other: RematOptions) -> bool:
    """Whether graphs with these options share their budget: where they dump does not count."""
    return one is other or replace(one, dump=None) == replace(other, dump=None)


def held_now(options: RematOptions) -> int:
    """What these calls hold, as far as it is known, unless the budget was measured meanwhile: then it is less that."""
    if options.memory_budget.kind is not BudgetKind.BYTES:
        return 0
    return sum(memory.held_bytes for _, memory in open_beside(options) if memory is not None)


def ran_alone(frame: int) -> bool:
    """Whether a function's graph made up a whole training step by itself when it last ran."""
    return frame in _alone


def _nothing(*_: object) -> None:
    pass


_unsettled: WeakSet[PlannedGraph] = WeakSet()
_alone: set[int] = set()
_deciding = threading.RLock()


def _complete(step: WatchedStep[PlannedGraph]) -> None:
    """Leave a complete step to the next call of its graphs: this may be autograd's thread, amid a backward."""
    if not any(graph in _unsettled for graph in step.graphs):
        return
    if len(step.calls) == 1 and all(turn is not Turn.BACKWARD for turn, _ in step.turns):
        return  # it was given up, or only looked at: that nothing follows in a training step, it does not tell
    frames = {graph.frame for graph in step.graphs if graph.frame is not None}
    (_alone.update if len(step.calls) == 1 else _alone.difference_update)(frames)
    alone = step.graphs[0] if len(step.calls) == 1 else None
    if alone is not None and alone.waits:
        # What came before it was perhaps not watched yet.
        alone.waits = False
        return
    if alone is not None and not alone.has_part:
        alone.settle()  # where Dynamo compiles it anew for other sizes, there is no next call
        return
    for graph in step.graphs:
        graph.pending = step


watch: StepWatch[PlannedGraph] = StepWatch(_complete)
