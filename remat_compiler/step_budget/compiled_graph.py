"""What Dynamo calls for a graph that is trained; its calls show which graphs make up a step.

Once a step is complete and its graphs are known, the compiled code may be exchanged for code under a shared budget.
Until then the graph keeps what is needed to compile it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.gradients.inputs import hooked
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import PartitionFigures
from remat_compiler.report.plan_report import PlanReport, StepFigures
from remat_compiler.step_budget.beside_open_calls import check_room
from remat_compiler.step_budget.beside_the_plan import WORTH_TELLING, BesideThePlan, Outside
from remat_compiler.step_budget.coordinator import StepCoordinator
from remat_compiler.step_budget.gradients_before import GradientsBefore
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_budget.out_of_memory import explain_failure
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import is_among
from remat_compiler.step_model.step import Step
from remat_compiler.watching.called_graph import CalledGraph

logger = logger_of(__name__)


class CompiledGraph(CalledGraph):
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
        super().__init__(attempt.compiled, coordinator.watch, coordinator.unsettled, plans.dispatch)
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
        self.steps: list[Step[CompiledGraph]] = []  # those that it is known to be part of
        self.beside: BesideThePlan | None = None
        self.gradients: GradientsBefore | None = None
        self.outside = Outside()
        # Its memory is then known at the sizes that it was planned for, and not at others.
        self.serves_other_sizes = not plans.at_all_sizes and any(isinstance(x, torch.SymInt) for x in example_inputs)
        self.runs_on_cpu = all(x.device.type == "cpu" for x in example_inputs if isinstance(x, torch.Tensor))
        self.aside_bytes = 0  # held by calls of earlier steps when the budget was last shared
        self.steps_without = 0
        self._hooks_bytes: dict[int, int] = {}  # of hooks that run within the backward, by argument
        self.staying: set[int] = set()  # arguments whose gradients are not to leave, as something else contributes, say
        compilation = torch_compat.frame_compilation()
        self.frame = None if compilation is None else compilation.frame
        # torch._dynamo.reset restarts the numbers: what is known of this one may be of another function.
        if compilation is not None and compilation.earlier == 0:
            coordinator.forget(compilation.frame)
        self._keep, self._reports, self.coordinator = keep, reports, coordinator
        self._memory: GraphMemory | None = None
        self._figures: PartitionFigures | None = None
        self.warned = False
        self._open_before: frozenset[int] | None = None
        coordinator.follow(self)

    def explain(self, error: RuntimeError, *, in_backward: bool = False) -> None:
        """Add a note to an error of this graph if memory ran out; see `explain_oom`."""
        if torch_compat.is_out_of_memory(error):
            memories = [one.memory for one in tuple(self._watch.here.open.values())]
            held = [memory.held_bytes for memory in memories if memory is not None]
            explain_failure(error, self._reports(), held, in_backward=in_backward)

    def look(self, arguments: Sequence[Any]) -> torch_compat.BackwardBegins | None:
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
        leaving = () if self.attempt is None else self.attempt.request.leaving
        if self.gradients is None or (self.options.memory_budget.minimises and not leaving):
            return None
        calls = dict(self._watch.here.open)
        begins = all(one.graph.gradients is not self.gradients for one in calls.values())
        # Until it is known which graphs share its steps, calls that began since the last look may be of the same one.
        if begins and not self.steps and self._open_before is not None:
            begins = calls.keys() <= self._open_before
        self._open_before = frozenset(calls)
        again = bool(self.plans.accumulated)
        looking = self.gradients.look(self, arguments, begins=begins, leaving=leaving, plans_again=again)
        return self._looking_at_hooks(looking, self.gradients) if leaving else looking

    def _looking_at_hooks(
        self, begins: torch_compat.BackwardBegins | None, before: GradientsBefore
    ) -> torch_compat.BackwardBegins | None:
        """`begins`, and then a look at what hooks took within the backward, and at gradients that did not leave."""
        if begins is None:
            return begins

        def backward_begins() -> Callable[[Any], None]:
            made = begins()

            def ends(gradients: Any) -> None:
                if made is not None:
                    made(gradients)
                self._learn_hooks(torch_compat.latest_hooks(), before.staying.pop(self, set()))

            return ends

        return backward_begins

    def _learn_hooks(self, took: Mapping[int, int], staying: Collection[int]) -> None:
        """Note both; plan with them from the next call on, with what hooks took only if it may make a difference."""
        planned = {} if self.attempt is None else dict(self.attempt.request.hooks_bytes)
        more = {i: size for i, size in took.items() if size > max(planned.get(i, 0), self._hooks_bytes.get(i, 0))}
        self._hooks_bytes.update(more)
        memory, limit = self.memory, self.budget_bytes
        self.staying.update(staying)
        if memory is not None and limit is None:
            limit = round(memory.peak_bytes * (1 + WORTH_TELLING))
        over = memory is not None and limit is not None and memory.peak_bytes + max(more.values(), default=0) > limit
        if staying or (more and over):
            self._hooks_seen = -1

    def ask_for_decision(self) -> bool:
        """Have the budget of its known steps decided about once more, before its next call; whether there are any."""
        if self.steps and self.completed_step is None:
            self.completed_step = self.steps[-1]
        return bool(self.steps)

    def decide_first(self) -> None:
        """Decide about complete steps of this graph, of which the calls so far may be one."""
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

    def look_at_hooks(self, arguments: Sequence[Any]) -> None:
        """Have gradients leave whose parameters have hooks by now, and plan with what those take."""
        if self.attempt is None or not self.plans.accumulated:
            return
        request = self.attempt.request
        leaving = tuple(sorted(({*request.leaving} | hooked(arguments, self.plans.accumulated)) - self.staying))
        hooks_bytes = {**dict(request.hooks_bytes), **self._hooks_bytes}
        if leaving != request.leaving or hooks_bytes != dict(request.hooks_bytes):
            with torch_compat.compile_lock():
                self.plans.have_leave(self, leaving, hooks_bytes)
            self.ask_for_decision()

    def keep_gradients(self) -> None:
        """Have no gradient leave within its backward, since other calls of a step contribute to its parameters."""
        if self.attempt is not None and self.attempt.request.leaving and self.plans.accumulated:
            self.staying.update(self.plans.accumulated)
            self.plans.have_leave(self, (), {})

    def check(self, arguments: Sequence[Any]) -> None:
        """Watch the step from here on, and check the call beside those that are open; see `check_room`."""
        self.coordinator.follow(self)
        self.coordinator.catch_up()
        check_room(self, arguments)

    def look_at_unknown(self, arguments: Sequence[Any], outputs: Any) -> torch_compat.BackwardBegins | None:
        """Look at a call of a step that is not known, as `look` does."""
        # Judged by this graph alone, the least that the step takes: its other graphs may never become known.
        if self.steps:
            return None
        self.outside.see(arguments, outputs)
        looking = self.look(arguments)
        torch_compat.note_outputs(torch_compat.compiled_backward(outputs, arguments), arguments, outputs)
        return looking

    def fake_outputs(self, arguments: Sequence[Any]) -> Any:
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
        now = None if self.plans.dispatch is None else self.plans.dispatch.memory_now
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
