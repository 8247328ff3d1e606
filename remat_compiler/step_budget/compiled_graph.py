"""What Dynamo calls for a graph that is trained, and what is learnt from the calls about its step.

The compiled code of a graph may be exchanged once a step is complete and its other graphs are known; until then it
keeps what is needed to compile it again.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.options import RematOptions, format_bytes
from remat_compiler.partition.result import Partition
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.simulate.step_peak import GraphMemory
from remat_compiler.step_budget.beside_the_plan import BesideThePlan, Outside
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.dynamic_graph import ChangingGraph
from remat_compiler.step_budget.known_steps import Place, is_among
from remat_compiler.step_budget.step_watch import WatchedStep

logger = logging.getLogger(__name__)


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
        keep: Reports and stores what a graph ends with: the try, its own budget, a note for the user, its whole step.
        recipe: How it is compiled again; `None` where it cannot be.
        coordinator: Knows of the steps that run it.
        example_inputs: Its inputs, as Dynamo gave them.
        has_part: Whether it has a part of the budget until its step is known; else it was taken to be alone.
        changing: What runs it, where its sizes change.
    """

    def __init__(
        self,
        attempt: Attempt,
        options: RematOptions,
        budget_bytes: int | None,
        keep: Callable[[Attempt, int | None, str, StepFigures | None], None],
        recipe: Recipe | None,
        coordinator: StepCoordinator[PlannedGraph],
        example_inputs: Sequence[Any],
        *,
        has_part: bool,
        changing: ChangingGraph | None = None,
    ) -> None:
        self.compiled = attempt.compiled
        self.attempt: Attempt | None = attempt
        self.native = attempt.native
        self.options = options
        self.budget_bytes = budget_bytes
        self.recipe = recipe
        self._has_part = has_part
        self.changing = changing
        self.waits = follows_others(example_inputs)
        self.pending: WatchedStep[PlannedGraph] | None = None
        # The steps that it is known to be part of, and what calls of it are refused in others.
        self.steps: list[WatchedStep[PlannedGraph]] = []
        self.places: dict[Any, Place] = {}
        self.refusals: dict[Any, InfeasibleBudget] = {}
        self.beside: BesideThePlan | None = None
        self.outside = Outside()
        self.aside_bytes = 0  # of outputs of earlier steps, beside which the budget was decided
        self.steps_without = 0
        compilation = torch_compat.frame_compilation()
        self.frame = None if compilation is None else compilation.frame
        if compilation is not None and compilation.earlier == 0:
            coordinator.forget(compilation.frame)
        self._keep = keep
        # Read at each call: what the coordinator has of them stays the same objects.
        self.coordinator, self._watch, self._unsettled = coordinator, coordinator.watch, coordinator.unsettled
        self._memory: GraphMemory | None = None
        self._unbudgeted: GraphMemory | None = None
        self.warned = False
        # Where its node is found at a glance.
        self._output = 0
        self._kind: type[Any] | None = None
        self._dispatch = None if changing is None else changing.dispatch
        coordinator.follow(self)

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        here = self._watch.here
        calls = here.open
        place = self.places.get(here.known if calls else None)
        if place is None or self._unsettled or len(calls) > place.most_open or self.pending is not None:
            return self._watched(arguments)
        outputs = self.compiled(*arguments)
        here.known = place
        kind = self._kind
        node: Any = None if kind is None else outputs[self._output].grad_fn
        if kind is None or not isinstance(node, kind):
            return self._found(arguments, outputs, place)
        note = self._dispatch and self._dispatch.latest
        calls[id(node)] = (ref(node), self, note, None, place.call)
        node._remat_calls = calls
        return outputs

    def _found(self, arguments: Sequence[Any], outputs: Any, place: Place) -> Any:
        """Note a call of a known step whose node is not where it was."""
        node = torch_compat.compiled_backward(outputs)
        looking = self._kind is None and self._looks_beside(arguments)
        if node is not None:
            direct = [i for i, value in enumerate(outputs) if getattr(value, "grad_fn", None) is node]
            if direct and not looking:
                self._output, self._kind = direct[0], type(node)
            note = self._dispatch and self._dispatch.latest
            self._watch.here.open[id(node)] = (ref(node), self, note, None, place.call)
            torch_compat.follow_backward(node, self._watch.here.open, self._watch.ran_backward)
        return outputs

    def _looks_beside(self, arguments: Sequence[Any]) -> bool:
        """Look for what takes memory beside the plan; whether to look again at the next call."""
        if self.beside is None and self.memory is not None:
            self.beside = BesideThePlan(self.memory.peak_bytes, self.budget_bytes)
        if self.beside is not None:
            left_bytes = None if self.memory is None else self.memory.left_bytes
            self.beside.say(self.outside, left_bytes, of_part=self.options.memory_budget.is_part)
        return self.beside is not None and self.beside.look(self, arguments)

    def _watched(self, arguments: Sequence[Any]) -> Any:
        """Run the forward of a step that is not known, or may not be."""
        if torch_compat.any_fake(arguments):
            return self._run_on_fakes(arguments)
        here = self._watch.here
        here.forget_dropped()
        self.steps_without = 0
        if self._unsettled:
            self.coordinator.catch_up()
            self._watch.begin()
        if self.pending is not None:
            with torch_compat.compile_lock():
                if self.pending is not None:
                    self.coordinator.decide(self.pending)
        place = self._place()
        if place is None:
            self._refuse_again()
        if place is not None and not self._unsettled:
            outputs = self.compiled(*arguments)
            here.known = place
            return self._found(arguments, outputs, place)
        self.coordinator.follow(self)
        self.coordinator.catch_up()
        self._check_room(arguments)
        outputs = self.compiled(*arguments)
        # By itself, which is the least that the step takes: whether its other graphs will be known, nobody can tell.
        if not self.steps:
            self.outside.see(arguments, outputs)
            self._looks_beside(arguments)
        here.known = _NOWHERE if place is None else place
        self._watch.forward(self, arguments, outputs, self.memory_now)
        return outputs

    def _place(self) -> Place | None:
        """Where in known steps it is called now; `None` where that is in none."""
        here = self._watch.here
        place = self.places.get(here.known if here.open else None)
        return None if place is None or len(here.open) > place.most_open else place

    def _refuse_again(self) -> None:
        """Raise what steps with this call were refused with."""
        here = self._watch.here
        if (here.known if here.open else None) in self.refusals:
            gc.collect()  # what is left of a step that was refused may only wait for that
            here.forget_dropped()
            error = self.refusals.get(here.known if here.open else None)
            if error is not None:
                # A copy has no traceback, whose frames would hold on to the step that failed.
                raise copy(error)

    def _run_on_fakes(self, arguments: Sequence[Any]) -> Any:
        """A call that only asks what the outputs look like is no part of a step."""
        answer = None if self.attempt is None else self.attempt.fake_outputs
        return self.compiled(*arguments) if answer is None else answer

    def _check_room(self, arguments: Sequence[Any]) -> None:
        """Before a call beside graphs that it does not share the budget with yet.

        Where sizes change, it is made to fit, or refused in the first step that runs it.  Else its step may exceed the
        budget, which is warned of, until the step is known.

        Raises:
            InfeasibleBudget: It does not fit beside what they hold, and the options do not say to go on.
        """
        before, limit = self.coordinator.open_calls_sharing(self.options), self.budget_bytes
        if limit is None:
            return
        held = self.coordinator.held_bytes(self.options)
        if self.changing is not None and ref(self) in self._unsettled:
            self._make_room(self.changing, arguments, limit, held)
        if not before:
            return
        memory = self.memory if self.changing is None else self.changing.dispatch.memory_at(arguments)
        if memory is None or held + memory.peak_bytes <= limit:
            return
        changing = any(graph.changing is not None for graph, _ in ((self, None), *before))
        if changing and self.options.on_infeasible != "min" and not self.steps:
            gc.collect()  # what is left of a step that was refused may only wait for that
            held = self.coordinator.held_bytes(self.options)
            if held + memory.peak_bytes > limit:
                reason = f"what {len(before)} graphs hold that ran before in the step"
                facts = BudgetFacts(asked=self.options.memory_budget.asked)
                raise InfeasibleBudget(limit, held + memory.peak_bytes, reason=reason, facts=facts)
        elif not self.warned:
            self.warned = True
            logger.warning(
                "this step may take %s, over memory_budget=%d bytes: %d calls before, of graphs that did not share the "
                "budget with this one so far, hold %s of it; it is shared from the next step on",
                format_bytes(held + memory.peak_bytes),
                limit,
                len(before),
                format_bytes(held),
            )

    def _make_room(self, changing: ChangingGraph, arguments: Sequence[Any], limit: int, held: int) -> None:
        """Run the call by what leaves alone what others hold; by what runs it in known steps, where nothing does."""
        before = changing.dispatch.allowance
        changing.make_room(limit, held)
        if self.steps:
            try:
                changing.dispatch.memory_at(arguments)
            except InfeasibleBudget:
                changing.dispatch.allow(before)

    @property
    def memory(self) -> GraphMemory | None:
        """Its memory by itself, as checked, else as simulated; `None` where nothing is known."""
        if self._memory is not None or self.attempt is None:
            return self._memory
        if not self.attempt.check.unknown:
            return self.attempt.check.memory
        one = self.partition
        return None if one is None else one.memory

    @property
    def memory_now(self) -> GraphMemory | None:
        """The same at the sizes of its latest call."""
        return self.memory if self.changing is None else self.changing.dispatch.memory_now or self.memory

    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from what is noted of it."""
        return note if isinstance(note, GraphMemory) else self.memory if note is None else note.memory or self.memory

    @property
    def partition(self) -> Partition | None:
        """What was decided; `None` for what a compiler's cache had, and once it is settled."""
        if self.changing is not None:
            return self.changing.first.partitions[0]
        return None if self.attempt is None else self.attempt.partition

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds, as far as it is known."""
        return 0 if self.partition is None else self.partition.added_ns

    @property
    def unbudgeted(self) -> GraphMemory | None:
        """Its memory without a budget, as simulated where that is not what runs; `None` where nothing is known."""
        one = self.partition
        if one is None:
            return self._unbudgeted
        if self.changing is not None:
            return self.changing.unbudgeted
        return self.memory if one.unchanged else one.memory_before

    @property
    def has_part(self) -> bool:
        """Whether it has part of the budget until its step is known, or gave way to a call that held some of it."""
        changing, whole = self.changing, self.budget_bytes
        if changing is None or changing.allowance is not None or whole is None:
            return self._has_part
        return self._has_part or changing.dispatch.limit_bytes < whole

    def keep(self, own_budget: int | None, note: str = "", step: StepFigures | None = None) -> None:
        """Report and store what it runs."""
        if self.attempt is not None:
            self._keep(self.attempt, own_budget, note, step)

    def plan_again(self) -> None:
        """Learn what was decided where a compiler's cache had the code; the code stays."""
        if self.recipe is not None and self.attempt is not None and self.partition is None:
            with self.recipe.context(), torch_compat.partitioner_always_runs():
                again = self.recipe.compile_(self.attempt.request, real=False)
            self.attempt = replace(self.attempt, partitions=again.partitions)

    def exchange(self, attempt: Attempt) -> None:
        """Run `attempt` from now on."""
        self.attempt, self.compiled, self._memory = attempt, attempt.compiled, None

    def settle(self) -> None:
        """Nothing more is to be learnt of the steps so far; what it takes to compile it again is kept, in short."""
        self._memory, self._unbudgeted = self.memory, self.unbudgeted
        self.pending, self._has_part, self.warned = None, False, False
        if self.attempt is not None:
            short = replace(self.attempt, partitions=(), form=None, check_at=None, graphs=(), fake_outputs=None)
            self.attempt = replace(short, compiled=self.compiled)
        self.coordinator.leave_out(self)

    def belongs_to(self, step: WatchedStep[PlannedGraph]) -> None:
        """The budget holds for such steps."""
        if not is_among(step, self.steps):
            self.steps = [*self.steps, step]


_NOWHERE = object()
"""Where a call is that belongs to no known step."""
