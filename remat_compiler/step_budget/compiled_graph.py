"""What Dynamo calls for a graph that is trained; its calls show which graphs make up a step.

Once a step is complete and its graphs are known, the compiled code may be exchanged for code under a shared budget.
Until then the graph keeps what is needed to compile it again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any
from weakref import ref

import torch

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import PartitionFigures
from remat_compiler.report.plan_report import PlanReport, StepFigures
from remat_compiler.step_budget.beside_open_calls import check_room
from remat_compiler.step_budget.beside_the_plan import BesideThePlan, Outside
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.gradients_before import GradientsBefore
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_budget.out_of_memory import explain_failure
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import NOWHERE, Place, is_among
from remat_compiler.step_model.step import Step
from remat_compiler.watching.open_calls import OpenCall

logger = logger_of(__name__)


class CompiledGraph:
    """What Dynamo calls for a graph that is trained: its compiled code, which may be exchanged after the first step.

    Args:
        attempt: The compilation.
        options: The user's options.
        budget_bytes: The budget of the whole step in bytes; `None` if it is not known in bytes.
        keep: Reports and stores the final state of a graph: the compilation, its own budget, a note for the user, and
            the figures of its whole step.
        plans: How it may be planned again.
        coordinator: Follows the steps of the process.
        example_inputs: The graph's inputs, as Dynamo gave them.
        has_part: Whether the graph has only a part of the budget until its step is known; else it was compiled as if
            it made up the step alone.
        of_several: Whether an earlier process planned it for a fraction of the peak of several graphs.
        refused_alone: Why it cannot make up a step alone; `None` if it may, or that is not known.
        reports: What is known of its plans now.
    """

    def __init__(
        self,
        attempt: Attempt,
        options: RematOptions,
        budget_bytes: int | None,
        keep: Callable[[Attempt, int | None, str, StepFigures | None], None],
        plans: GraphPlans,
        coordinator: StepCoordinator[CompiledGraph],
        example_inputs: Sequence[Any],
        *,
        has_part: bool,
        of_several: bool = False,
        refused_alone: InfeasibleBudget | None = None,
        reports: Callable[[], Sequence[PlanReport]] = tuple,
    ) -> None:
        self.compiled = attempt.compiled
        self.attempt: Attempt | None = attempt
        self.native = attempt.native
        self.options = options
        self.budget_bytes = budget_bytes
        self.plans = plans
        # What one run may move off the device, and the runs of a step, once graphs share a step.
        self.room_bytes, self.runs = 0, 1
        self.room_runs = 1  # those that the present room was reserved for
        self._has_part, self._of_several, self.refused_alone = has_part, of_several, refused_alone
        self.awaits_earlier_graphs = _follows_others(example_inputs)
        self.completed_step: Step[CompiledGraph] | None = None
        # The steps that it is known to be part of, its calls in them, and its refused calls in others: both by the call
        # before, `None` for the first one of a step.
        self.steps: list[Step[CompiledGraph]] = []
        self.places: dict[Place | None, Place] = {}
        self.refusals: dict[Place | None, InfeasibleBudget] = {}
        self.beside: BesideThePlan | None = None
        self.gradients: GradientsBefore | None = None
        self.outside = Outside()
        self.aside_bytes = 0  # held by calls of earlier steps when the budget was last shared
        self.steps_without = 0
        compilation = torch_compat.frame_compilation()
        self.frame = None if compilation is None else compilation.frame
        # torch._dynamo.reset restarts the numbers: what is known of this one may be of another function.
        if compilation is not None and compilation.earlier == 0:
            coordinator.forget(compilation.frame)
        self._keep, self._reports = keep, reports
        # Short cuts for the fast path; the coordinator never replaces these objects.
        self.coordinator, self._watch, self._unsettled = coordinator, coordinator.watch, coordinator.unsettled
        self._memory: GraphMemory | None = None
        self._figures: PartitionFigures | None = None
        self.warned = False
        self._open_before: frozenset[int] | None = None
        # Which output has the compiled graph's node for its `grad_fn`, and that node's class once a call was searched.
        self._output = 0
        self._kind: type[Any] | None = None
        self._dispatch = plans.dispatch
        coordinator.follow(self)

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        try:
            # The fast path, a few dictionary look-ups, is for calls of known steps while nothing is to be learnt.
            here = self._watch.here
            calls = here.open
            # A step begins when no call is open, whatever was called last.
            place = self.places.get(here.known if calls else None)
            if place is None or self._unsettled or len(calls) > place.most_open or self.completed_step is not None:
                return self._watched(arguments)
            outputs = self._run(arguments)
            here.known = place
            kind = self._kind
            node: Any = None if kind is None else outputs[self._output].grad_fn
            # Every compiled function has a node class of its own: another variant, or exchanged code, has another one.
            if kind is None or not isinstance(node, kind):
                return self._found(arguments, outputs, place)
            note = self._dispatch and self._dispatch.latest
            # As `follow_backward` does it.  `None`: nobody is told of the backward, the entry only disappears.
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

    def explain(self, error: RuntimeError, *, in_backward: bool = False) -> None:
        """Add a note to an error of this graph if memory ran out; see `explain_oom`."""
        if torch_compat.is_out_of_memory(error):
            memories = [one.memory for one in tuple(self._watch.here.open.values())]
            held = [memory.held_bytes for memory in memories if memory is not None]
            explain_failure(error, self._reports(), held, in_backward=in_backward)

    def _found(self, arguments: Sequence[Any], outputs: Any, place: Place) -> Any:
        """Note a call of a known step after searching its outputs for the node of the compiled graph."""
        node = torch_compat.compiled_backward(outputs)
        # While gradients are looked for, calls must come this way: the fast path stays off without a kind.
        looking = self._looks_beside(arguments) if self._kind is None else None
        if node is not None:
            direct = [i for i, value in enumerate(outputs) if getattr(value, "grad_fn", None) is node]
            if direct and looking is None:
                self._output, self._kind = direct[0], type(node)
            if looking is not None:
                torch_compat.note_outputs(node, arguments, outputs)
            note = self._dispatch and self._dispatch.latest
            self._watch.here.open[id(node)] = OpenCall(ref(node), self, note, None, place.call)
            self._watch.follow(node, self._watch.here.open, looking)
        return outputs

    def _looks_beside(self, arguments: Sequence[Any]) -> torch_compat.BackwardBegins | None:
        """Look for memory that no graph plans, warn of it, and plan again where that helps; see `GradientsBefore`."""
        memory = self.memory
        if self.beside is None and memory is not None:
            self.beside = BesideThePlan(memory.peak_bytes, self.budget_bytes)
            self.gradients = GradientsBefore(
                memory.peak_bytes, self.budget_bytes, memory.forward_bytes, self.ask_for_decision
            )
            self.gradients.expect(self, arguments)
        if self.beside is not None:
            left_bytes = None if memory is None else memory.left_bytes
            self.beside.say(self.outside, left_bytes, of_part=self.options.memory_budget.is_part)
        if self.gradients is None or self.options.memory_budget.minimises:
            return None
        calls = dict(self._watch.here.open)
        begins = all(one.graph.gradients is not self.gradients for one in calls.values())
        # Until it is known which graphs share its steps, calls that began since the last look may be of the same one.
        if begins and not self.steps and self._open_before is not None:
            begins = calls.keys() <= self._open_before
        self._open_before = frozenset(calls)
        return self.gradients.look(self, arguments, begins=begins)

    def look_again(self) -> None:
        """Have the next calls come by where gradients from before the step are looked for."""
        self._kind = None

    def ask_for_decision(self) -> bool:
        """Have the budget of its known steps decided about once more, before its next call; whether there are any."""
        if self.steps and self.completed_step is None:
            self.completed_step = self.steps[-1]
        return bool(self.steps)

    def _watched(self, arguments: Sequence[Any]) -> Any:
        """Run the forward in a step that is not known yet, or may turn out to be another one."""
        # On paper all tensors are fake, and their steps are the user's.
        if not torch_compat.is_on_paper() and torch_compat.any_fake(arguments):
            return self._run_on_fakes(arguments)
        here = self._watch.here
        # First: calls that nobody can run backward any more must not count as open below.
        here.forget_dropped()
        self.steps_without = 0
        if self._unsettled:
            # Before this call counts: the calls so far may turn out to be a complete step, to be decided about now.
            self.coordinator.catch_up()
            self._watch.begin()
        if self.completed_step is not None:
            with torch_compat.compile_lock():
                # Another thread may have decided while this one waited for the lock.
                if self.completed_step is not None:
                    self.coordinator.decide(self.completed_step)
        place = self._place()
        if place is None:
            self._refuse_again()
        if place is not None and not self._unsettled:
            # The decision, or the calls that were dropped, made this a known step after all.
            outputs = self._run(arguments)
            here.known = place
            return self._found(arguments, outputs, place)
        # An unknown step: it is watched in full from here, calls included that were open before.
        self.coordinator.follow(self)
        self.coordinator.catch_up()
        check_room(self, arguments)
        self._watch.begins_forward()
        outputs = self._run(arguments)
        # Judged by this graph alone, the least that the step takes: its other graphs may never become known.
        looking = None
        if not self.steps:
            self.outside.see(arguments, outputs)
            looking = self._looks_beside(arguments)
            torch_compat.note_outputs(torch_compat.compiled_backward(outputs), arguments, outputs)
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

    def _run_on_fakes(self, arguments: Sequence[Any]) -> Any:
        """The outputs of a call on fake tensors, such as DDP makes between its buckets; it is no part of a step."""
        answer = None if self.attempt is None else self.attempt.fake_outputs
        return self.compiled(*arguments) if answer is None else answer

    @property
    def memory(self) -> GraphMemory | None:
        """Its memory by itself, from the dry run, else from the simulator; `None` if neither knows it."""
        if self._memory is not None or self.attempt is None:
            return self._memory
        if not self.attempt.check.unknown:
            return self.attempt.check.memory
        one = self.figures
        return None if one is None else one.memory

    @property
    def memory_now(self) -> GraphMemory | None:
        """Its memory at the sizes of its latest call."""
        now = None if self._dispatch is None else self._dispatch.memory_now
        return now or self.memory

    def noted_memory(self, note: Any) -> GraphMemory | None:
        """The memory of a call, from what is noted of it."""
        return note if isinstance(note, GraphMemory) else self.memory if note is None else note.memory or self.memory

    @property
    def figures(self) -> PartitionFigures | None:
        """What is known of the partition of its joint graph; `None` if a compiler's cache had the code."""
        if self.plans.figures is not None:
            return self.plans.figures
        if self._figures is None and self.attempt is not None and self.attempt.partition is not None:
            self._figures = self.attempt.partition.figures
        return self._figures

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds; 0 if the partition is not known."""
        return 0 if self.figures is None else self.figures.added_ns

    @property
    def unbudgeted(self) -> GraphMemory | None:
        """Its memory without a budget, simulated unless such code runs; `None` if the partition is not known."""
        one = self.figures
        if one is None:
            return None
        of_plans = self.plans.unbudgeted
        return of_plans or (self.memory if one.unchanged else one.memory_before)

    @property
    def has_part(self) -> bool:
        """Whether it has only a part of the budget: until its step is known, or since it gave way to an open call."""
        whole = self.budget_bytes
        return self._has_part or (whole is not None and self.plans.has_less_than(whole))

    @property
    def is_planned_alone(self) -> bool:
        """Whether its plan is right if it makes up the step alone."""
        return not self.has_part and not self._of_several

    def keep(self, own_budget: int | None, note: str = "", step: StepFigures | None = None) -> None:
        """Report and store the code that it runs."""
        if self.attempt is not None:
            # The step without a budget may have been emitted since, or for an attempt that was exchanged.
            self._keep(replace(self.attempt, native=self.native), own_budget, note, step)

    def plan_again(self) -> None:
        """Plan again to learn the partition if a compiler's cache had the code; the code stays."""
        if self.attempt is not None and self.figures is None:
            self.attempt = self.plans.learnt(self.attempt)

    def exchange(self, attempt: Attempt) -> None:
        """Run `attempt` from now on.

        Raises:
            OffloadError: There is no room for what it moves off the device; the present code stays.
        """
        attempt = self.plans.with_room(attempt, self.runs, self.attempt)
        self.room_runs = self.runs
        self.attempt, self.compiled, self._memory, self._figures = attempt, attempt.compiled, None, None

    def finalise(self) -> None:
        """End the learning about its steps so far; of the compilation only what a later one needs is kept."""
        # Read before the partition that they come from is dropped.
        self._memory, self._figures = self.memory, self.figures
        self.completed_step, self.refused_alone = None, None
        self._has_part, self._of_several, self.warned = False, False, False
        if self.attempt is not None:
            # Graphs, plans and formulas would stay in memory for as long as the model is trained.
            short = replace(self.attempt, partitions=(), formula=None, check_at=None, graphs=(), fake_outputs=None)
            self.attempt = replace(short, compiled=self.compiled)
        self.coordinator.leave_out(self)

    def belongs_to(self, step: Step[CompiledGraph]) -> None:
        """Note that the budget was decided for steps like this one."""
        if not is_among(step, self.steps):
            self.steps = [*self.steps, step]


def _follows_others(example_inputs: Sequence[Any]) -> bool:
    """Whether an input is the result of other differentiable operators."""
    return any(isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf for x in example_inputs)
