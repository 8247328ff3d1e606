"""One budget for all graphs of a step: after graph breaks, or if several compiled modules run in a row.

Nothing is known of later graphs when the first one is compiled.  So a graph after which the step goes on gets only a
part of the budget at first, and the graphs after it what it leaves free.  Once a step is complete, its graphs and their
order are known.  If together they exceed the budget, or need less recomputation than they do, the budget is shared
among them and they are compiled again, before the next step:

    first step    A: a quarter │ B: what A leaves        compiled one by one, as Dynamo comes to them
    next step     A and B planned together               compiled under what Dynamo knew of them, then kept

A graph that was compiled as if it were alone, and is not, may exceed the budget together with others in the first step.

If sizes change, graphs get limits of their own for all sizes, see `step_model.size_split`; then the first step keeps to
the budget, too, or is refused.

Gradients that are there before the step are found by later calls, see `gradients_before`; then there is one more
decision, about what they leave free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.beside_the_plan import BesideThePlan, Outside
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import share_budget
from remat_compiler.step_budget.gradients_before import GradientsBefore
from remat_compiler.step_budget.graph_levels import member_of, passing
from remat_compiler.step_budget.joint_plans import JointPlan, JointPlans
from remat_compiler.step_budget.joint_steps import JointSteps
from remat_compiler.step_budget.shared_budget import SharedBudget
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.events import Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.handed_on import handed_on
from remat_compiler.step_model.known_steps import learn, refuse
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.size_split import Division, GraphChoices, SizeSplit
from remat_compiler.step_model.step import Step
from remat_compiler.units import counted, format_bytes, told_apart

logger = logger_of(__name__)

_NO_SMALLER_PLAN = "no plan was found that takes less; training goes on"
GRAPH_BREAKS = 'TORCH_LOGS="graph_breaks" shows where the step is cut'


def decide(step: Step[CompiledGraph]) -> None:
    """Keep the graphs of a complete step as they are, or share the budget among them and compile them again.

    After any exception but `InfeasibleBudget` everything is as before, and the next call tries again.

    Raises:
        InfeasibleBudget: The graphs do not fit together, and the options do not say to take the smallest peak.  Calls
            that only such a step makes are refused from then on, too.
    """
    together = _Replan(step)
    before = together.joint.gradient_bytes or together.joint.freed
    try:
        # Even a single call may need a decision: a graph kept for another backward, calls of earlier steps that are
        # still open, or other steps that run the graph make it take more than it does alone.
        kept = any(turn is Turn.KEPT for turn, _ in step.turns)
        if len(step.calls) > 1 or step.aside or step.seen.sharded or kept or together.joint.steps[1:]:
            together.decide()
        else:
            # In this order: gradients from before a step are no reason to keep a plan that is over the budget alone.
            if not step.graphs[0].is_planned_alone:
                step.graphs[0].plans.decide_alone(step.graphs[0])
            if before:
                joint = together.joint
                step.graphs[0].plans.decide_beside(
                    step.graphs[0], joint.limit_bytes(), joint.gradient_bytes, freed=joint.freed
                )
    except InfeasibleBudget as error:
        # Decided, too: without `finalise` the next call, which may be of another step, would decide it once more.
        refuse(step, error)
        for graph in step.graphs:
            graph.finalise()
        raise
    together.look_beside()
    for graph in step.graphs:
        graph.belongs_to(step)
        graph.aside_bytes = together.joint.aside_bytes
    # Only once everything is decided and compiled may calls of this step count as known.
    learn(step)
    for graph in together.graphs:
        graph.finalise()


class _Replan:
    """The decision about the graphs of one step."""

    def __init__(self, step: Step[CompiledGraph]) -> None:
        self.joint = JointSteps(step)
        self.plans = JointPlans(self.joint)
        self.step, self.graphs, self.options = step, self.joint.graphs, self.joint.options

    def decide(self) -> None:
        """See the function `decide`."""
        # Before the peak is judged: a gradient to which several calls contribute is autograd's to add up.
        for graph in self.step.sharing():
            graph.keep_gradients()
        memories = [graph.memory for graph in self.graphs]
        known = [memory for memory in memories if memory is not None]
        if len(known) < len(memories):
            # Under "min" and "auto" there is nothing to warn of: the user named no number.
            if any(graph.options.memory_budget.has_number for graph in self.graphs):
                self._warn("together they take more than each alone", "what one of them takes is not known")
            return
        if self.options.budget_of == "reserved":
            logger.warning(
                'budget_of="reserved" holds for steps of one graph; the graphs of this step share the budget by what '
                "is allocated"
            )
        limit = self.joint.limit_bytes()
        peak = self.joint.peak(known)
        change = any(graph.plans.at_all_sizes for graph in self.graphs)
        if not all(share_budget(graph.options, self.options) for graph in self.graphs):
            # Nobody said how to split different budgets.  Within the smallest of them, no budget is exceeded.
            limit = min((g.budget_bytes for g in self.graphs if g.budget_bytes is not None), default=None)
            if limit is not None and (peak > limit or change):
                self._warn(f"together they peak at {format_bytes(peak)}", "their options differ")
                return
        if limit is not None:
            # Before anything changes: it is about the step that ran.  Gradients from before it are found only later.
            if not self.joint.gradient_bytes:
                self._say_exceeded(known, limit)
            limit = self._beside_kept(peak, limit)
        if limit is not None and change:
            self._share_sizes(limit)
            return
        if self.options.memory_budget.minimises:
            self._minimise(peak)
            return
        parts = self.joint.freed or any(graph.has_part for graph in self.graphs)
        settled = not parts and self.plans.room_is_kept
        if limit is None or (peak <= limit and settled):
            self._keep_all(peak, limit)
            return
        fixed = [graph for graph in self.graphs if not graph.plans.can_change]
        if peak > limit and len(fixed) == len(self.graphs):
            if peak - self.joint.gradient_bytes <= limit:
                self._keep_all(peak, limit)  # `look_beside` warns
                return
            self._warn(
                f"together they peak at {format_bytes(peak)}, over {format_bytes(limit)}",
                "they cannot be compiled again, since their sizes change or Dynamo is not at hand",
            )
            return
        self._share(peak, limit)

    def look_beside(self) -> None:
        """Warn of memory that no graph plans, and have the graphs look for gradients from before the step."""
        memories = [memory for graph in self.graphs if (memory := graph.memory) is not None]
        if len(memories) < len(self.graphs):
            return
        limit = None if self.options.memory_budget.named_bytes is None else self.joint.limit_bytes()
        before = [graph.beside for graph in self.graphs if graph.beside is not None]
        # What a graph told already is not told again of the step.
        told = {what for one in before for what in one.told}
        peak = self.joint.peak(memories) - self.joint.gradient_bytes
        beside = BesideThePlan(peak, limit, len(self.graphs), told)
        outside = [graph.outside for graph in self.graphs]
        together = Outside(
            sum(graph.outside.eager_of(self._runs(graph)) for graph in self.graphs),
            sum(one.view_bytes for one in outside),
            sum(one.made_bytes for one in outside),
            max(one.before_bytes for one in outside),
        )
        beside.say(together, None, of_part=self.options.memory_budget.is_part)
        gradients = self._gradients(peak, limit, memories[0].forward_bytes if len(memories) == 1 else 0)
        for graph in self.graphs:
            graph.beside, graph.gradients = beside, gradients

    def _gradients(self, peak: int, limit: int | None, forward_bytes: int) -> GradientsBefore:
        """What the graphs' own looks for gradients from before the step found, for all of them together."""
        known = {id(one): one for graph in self.graphs if (one := graph.gradients) is not None}.values()
        found = GradientsBefore(
            peak,
            limit,
            forward_bytes,
            self.graphs[0].ask_for_decision,
            planned_bytes=self.joint.gradient_bytes,
            told=any(one.told for one in known),
            stays=any(one.stays for one in known),
        )
        for one in known:
            found.take_over(one)
        if self.joint.gradient_bytes and limit is None:
            limit = self.joint.limit_bytes()  # of a fraction, which depends on these gradients
        # What is planned beside them at each of many sizes is warned of at the sizes that exceed the budget.
        if limit is not None and not any(graph.plans.keeps_beside for graph in self.graphs):
            found.say(peak, self.joint.gradient_bytes, limit, why=_NO_SMALLER_PLAN)
        return found

    def _share_sizes(self, limit: int) -> None:
        """Limit the graphs whose sizes change; compile the others again at their levels."""
        self.plans.learn()
        passed = handed_on(self.joint.calls, self.joint.turns)
        members = [member_of(graph, passed.get(i, ())) for i, graph in enumerate(self.graphs)]
        split, division = self._division(members, limit)
        # Graphs of fixed sizes first: what they are measured to take once compiled is all that is left to decide on.
        fixed = [i for i, graph in enumerate(self.graphs) if not graph.plans.at_all_sizes]
        for i in fixed:
            graph, level = self.graphs[i], division.levels[i]
            attempt = graph.plans.compiled_at(graph, level, real=True)
            if attempt is not None and attempt is not graph.attempt:
                graph.exchange(attempt)
            if (memory := graph.memory) is not None:
                members[i] = GraphChoices((passing(replace(level, memory=memory), passed.get(i, ())),))
        # The others share what those really leave, which differs a little from what the simulator foresaw.
        if fixed:
            split, division = self._division(members, limit)
        coordinator, plans = self.graphs[0].coordinator, [graph.plans for graph in self.graphs]
        shared = SharedBudget(
            split, plans, self.joint.calls[0].graph, lambda: not coordinator.open_calls_sharing(self.options)
        )
        shared.apply(division)
        step = self._figures(None, limit)
        for graph, allowance in zip(self.graphs, division.allowances):
            memory = None if graph.plans.at_all_sizes else graph.memory
            own = allowance.limit_bytes if memory is None else memory.peak_bytes
            graph.keep(own, "the limits of the step's graphs hold at all sizes", self._as_run(graph, step))

    def _division(self, members: Sequence[GraphChoices], limit: int) -> tuple[SizeSplit, Division]:
        """The shared budget; if nothing fits, a larger budget that does, if the options allow that.

        If the first sizes do not fit, the budget is shared for the largest sizes that do: larger ones are refused when
        they come.
        """
        calls, turns, seen, before = self.joint.calls, self.joint.turns, self.joint.seen, self.joint.gradient_bytes
        # Beside gradients from before the step, as long as the first sizes have a plan there: a size that fits by
        # itself must not be refused amid a step for them.
        for spare in dict.fromkeys((before, 0)):
            split = SizeSplit(members, calls, turns, limit - spare, seen, spare)
            division = split.divide(needed=0)
            if division is not None:
                return split, division
        may_be_over = self.options.on_infeasible == "min"
        if split.most is not None and not may_be_over:
            division = split.divide(split.most)
            if division is not None:
                return split, division
        least = split.least_peak
        if not may_be_over:
            # Limits of 0 bytes refuse all later calls, too: a call cannot tell which kind of step it will be in.
            for graph in self.graphs:
                graph.plans.share(Allowance.whole(0), self)
            self._refuse(limit, least)
        self._warn_of_smallest(limit, least)
        split = SizeSplit(members, calls, turns, least, seen)
        division = split.divide(needed=0)
        assert division is not None, "the smallest peak is within itself"
        return split, division

    def _share(self, peak: int, limit: int) -> None:
        """Compile again under a shared budget, if that is needed or worth it."""
        self.plans.learn()
        fits = peak <= limit and self.plans.room_is_kept
        found = self.plans.within(limit, fits)
        if found is not None:
            self._exchange(found, limit)
        elif fits:
            self._keep_all(peak, limit)
        else:
            self._take_smallest(limit)

    def _take_smallest(self, limit: int) -> None:
        """Take the smallest peak: silently if it fits, else with a warning or the error, as the options say."""
        found = self.plans.smallest()
        peak = found.peak_bytes or self.joint.peak([level.memory for level in found.levels])
        # Where only gradients from before are too much, training goes on: `look_beside` warns.
        if peak - self.joint.gradient_bytes > limit:
            if self.options.on_infeasible != "min":
                self._refuse(limit, peak)
            self._warn_of_smallest(limit, peak)
        self._exchange(replace(found, peak_bytes=peak), limit)

    def _minimise(self, peak: int) -> None:
        """Take the smallest joint peak if it is below that of the graphs' own smallest peaks."""
        self.plans.learn()
        found = self.plans.smallest()
        if not self.plans.room_is_kept or (found.peak_bytes is not None and found.peak_bytes < peak):
            self._exchange(found, None)
        else:
            self._keep_all(peak, None)

    def _say_exceeded(self, memories: Sequence[GraphMemory], limit: int) -> None:
        """Warn if the step just watched, which ran before its graphs were known, may have exceeded the budget."""
        # `limit` is that of the largest of the joined steps; this step's own is `more` below it.
        more = self.joint.more_bytes
        peak = whole_step_peak(memories, self.joint.calls, self.joint.turns, self.joint.seen)
        if peak + more > limit and not any(graph.warned for graph in self.graphs):
            logger.warning(
                "a step may have taken %s, over memory_budget=%s (%s), before it was known that it runs %d planned "
                "graphs; the budget is shared among them from now on",
                format_bytes(peak),
                self.options.memory_budget.asked,
                format_bytes(limit - more),
                len(self.step.graphs),
            )

    def _beside_kept(self, peak: int, limit: int) -> int:
        """The limit less what open calls of earlier steps hold, if the graphs can keep to it; else `limit`."""
        left = limit - self.joint.aside_bytes
        if peak <= left or not self.joint.aside_bytes or self.options.memory_budget.named_bytes is None:
            # Only bytes that the user named are for all there is: "auto" was measured with these calls' bytes taken,
            # and a fraction is one of the step alone.
            return min(limit, left) if peak <= left else limit
        self.plans.learn()
        lowest = self.plans.lowest(extremes=False)
        least = self.joint.peak([level.memory for level in lowest])
        if least <= left:
            return left
        logger.warning(
            "%s of earlier steps still held with what the backward needs, %s: beside that the step takes "
            "up to %s more, over memory_budget=%s; detach what is to be kept",
            counted(len(self.step.aside), "output"),
            format_bytes(self.joint.aside_bytes),
            format_bytes(min(peak, limit)),
            format_bytes(limit),
        )
        return limit

    def _refuse(self, limit: int, smallest: int) -> NoReturn:
        slowest = self.options.max_slowdown
        reason = "" if slowest is None else f"max_slowdown={slowest}, "
        facts = BudgetFacts(asked=self.options.memory_budget.asked, planner=self.options.planner)
        raise InfeasibleBudget(limit, smallest, reason=f"{reason}{self._what()} together", facts=facts)

    def _what(self) -> str:
        """The parts of the step that share the budget, for messages."""
        graphs, calls = len(self.step.graphs), len(self.step.calls)
        return f"{graphs} graphs of the step" if graphs > 1 else f"{calls} calls of a graph in a step"

    def _warn_of_smallest(self, limit: int, smallest: int) -> None:
        budget, peak = told_apart(limit, smallest)
        logger.warning(
            "no plan fits memory_budget=%s: the %s together peak at %s; training goes on", budget, self._what(), peak
        )

    def _exchange(self, plan: JointPlan, limit: int | None) -> None:
        step = self._figures(plan.peak_bytes, limit)
        for graph, attempt, level in zip(self.graphs, plan.attempts, plan.levels):
            final = attempt if attempt is None or attempt.real else graph.plans.compiled_at(graph, level, real=True)
            if final is not None and final is not graph.attempt:
                graph.exchange(final)
            # The largest of the three: the next process must find that what is stored fits its own budget.
            own = graph.memory
            largest = max(level.budget_bytes, level.memory.peak_bytes, 0 if own is None else own.peak_bytes)
            graph.keep(largest, "", self._as_run(graph, step))

    def _keep_all(self, peak: int, limit: int | None) -> None:
        for graph in self.graphs:
            own, part, memory = graph.budget_bytes, graph.attempt if graph.has_part else None, graph.memory
            if part is not None and memory is not None:
                # A part that turned out to be enough is the graph's own budget from now on.  Where nothing fitted it,
                # its peak is: the next process must find that what is stored fits its own budget.
                own = max(part.request.budget_bytes or 0, memory.peak_bytes)
            graph.keep(own, "", self._as_run(graph, self._figures(peak, limit)))

    def _figures(self, peak: int | None, limit: int | None) -> StepFigures:
        return StepFigures(
            len(self.step.graphs), peak, limit, self.joint.sharded_bytes, gradient_bytes=self.joint.gradient_bytes
        )

    def _as_run(self, graph: CompiledGraph, step: StepFigures) -> StepFigures:
        """The figures for the report of one graph."""
        return replace(step, runs=self._runs(graph))

    def _runs(self, graph: CompiledGraph) -> int:
        """How often a step calls one graph, at most."""
        position = self.graphs.index(graph)
        return max(runs[position] for runs in self.joint.runs_of_steps)

    def _warn(self, found: str, why: str) -> None:
        """Warn that the budget holds for each graph alone, and give each graph all of it."""
        logger.warning(
            "the step runs %d planned graphs, and memory_budget was kept for each of them only: %s, but %s; name a "
            "smaller budget, or let the step be one graph (%s)",
            len(self.graphs),
            found,
            why,
            GRAPH_BREAKS,
        )
        for graph in self.graphs:
            graph.plans.take_all(graph.budget_bytes)
            graph.keep(graph.budget_bytes, f"the budget holds for this graph only: {found}, but {why}")
