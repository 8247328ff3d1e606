"""Which requests to compile for one graph until its checked peak fits the budget and uses it.

    request ─► compile ─► dry run ─► fits, and uses the budget ─► keep
                  ▲           │
                  └───────────┘ over the budget: plan for less; far below it: plan for more

The first compilation is a real one, since it is nearly always the last.  Further tries only generate code, which is
enough for the dry run, and the one that is kept is then compiled.

Where the planner finds nothing within the budget, the smallest peak that it found is emitted and checked before it is
refused: what is emitted may peak below what the simulator says, and the error names bytes that can be relied on.

Convolutions are tried twice: first laid out as the inner compiler likes, which is faster and takes copies of their
weights, then, where those do not fit, or only at the price of much recomputation, as the program has them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.compilation.feedback import best_of, limit_bytes, next_request
from remat_compiler.compilation.refusal import facts_of
from remat_compiler.errors import BudgetFacts, InfeasibleBudget, Unplannable
from remat_compiler.options import RematOptions, format_bytes
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.step_peak import GraphMemory
from remat_compiler.simulate.timeline import simulate

logger = logging.getLogger(__name__)

MAX_TRIES = 4
"""How often a graph is planned at most, for each layout, until its checked peak fits and uses the budget."""
LAYOUT_GAIN = 0.05
"""Fraction of the step that may be recomputed more for the sake of the inner compiler's own layout."""


class Search:
    """The tries at one graph.

    Args:
        compile_: Compiles it.
        options: What the user asked for.
        chooses_layout: Whether the inner compiler may lay out operators otherwise than the program does.
    """

    def __init__(self, compile_: Compile, options: RematOptions, *, chooses_layout: bool) -> None:
        self.compile = compile_
        self.options = options
        self.chooses_layout = chooses_layout and options.inner == "inductor"
        self.limit: int | None = None
        self.refusal: NoPlan | None = None
        self.native: GraphMemory | None = None

    def run(self, request: PartitionRequest, known: Attempt | None, limit: int | None) -> tuple[Attempt, int | None]:
        """The try to keep, and the budget in bytes (`None` for none).

        Args:
            request: What to aim for at first.
            known: What an earlier compilation ended with: the first try, and the last one where it still fits.
            limit: The budget in bytes, where it is known already.

        Raises:
            InfeasibleBudget: Nothing fits, and the options do not say to take the smallest peak.
        """
        self.limit = limit
        if self.chooses_layout:
            # Copies of weights are not foreseen: the order would be blamed for them.
            request = replace(request, early_loops=False)
        if known is None and request.fraction is not None:
            request = self._in_bytes(request, request.fraction)
        tries = self._tries(request, known)
        if request.free_layout and self.chooses_layout and self._layout_costs(tries):
            tries += self._tries(replace(request, free_layout=False), None)
        best = best_of(tries, self.limit)
        if best is None or best.is_over(self.limit):
            best = self._when_nothing_fits(best)
        if not best.real:
            best = self.compile(best.request)
            if best.is_over(self.limit):
                best = self._when_nothing_fits(best)
        return replace(best, native=self.native), self.limit

    def _in_bytes(self, request: PartitionRequest, fraction: float) -> PartitionRequest:
        """The request in bytes: the step without a budget is emitted and checked, since estimates are not exact."""
        unlimited = request.without_budget
        native = self.compile(unlimited, real=False)
        if not native.trains or native.check.unknown:
            return request
        self.native = native.check.memory
        self.limit = self.options.memory_budget.of_reference(native.check.peak_bytes)
        return unlimited if fraction == 1.0 else replace(request, fraction=None, budget_bytes=self.limit)

    def _tries(self, request: PartitionRequest, known: Attempt | None) -> list[Attempt]:
        """Tries in one layout, at most `MAX_TRIES`, until one fits and uses the budget."""
        tries: list[Attempt] = []
        trial = self.chooses_layout and request.free_layout
        likely = not trial
        while len(tries) < MAX_TRIES:
            settled = known is not None
            try:
                attempt = known or self.compile(request, real=likely and not tries)
                known = None
            except NoPlan as refused:
                self.refusal, likely = refused, False
                if self.limit is None:
                    # What follows is asked for more than the user allows, and would be taken for the budget.
                    self.limit = refused.problem.budget_bytes
                if request.take_smallest or refused.result.plan is None:
                    break
                smallest_bytes = refused.result.peak_bytes
                request = replace(request, budget_bytes=smallest_bytes, fraction=None, take_smallest=True)
                continue
            tries.append(attempt)
            if self.limit is None:
                self.limit = limit_bytes(self.options.memory_budget, attempt)
            if attempt.is_over(self.limit) and any(one.early_loops for one in attempt.partitions):
                request = replace(request, early_loops=False)
                continue
            following = next_request(request, attempt, self.limit)
            if following is None or (settled and not attempt.is_over(self.limit)):
                break
            request = following
        return tries

    def _layout_costs(self, tries: Sequence[Attempt]) -> bool:
        """Whether the inner compiler's layout does not fit, or fits only by recomputing much more."""
        if any(one.failure is not None for one in tries):
            return False
        best = best_of(tries, self.limit)
        if best is None or best.is_over(self.limit):
            return True
        more_ns = best.added_ns - tries[0].added_ns
        return more_ns > LAYOUT_GAIN * best.step_ns

    def _when_nothing_fits(self, best: Attempt | None) -> Attempt:
        """The smallest peak with a warning, where the options allow that; else the error."""
        if best is not None and self.limit is not None and self.options.on_infeasible == "min":
            warn_of_smallest(self.limit, best.needed_bytes or 0)
            return best
        refusal = self.refusal
        if best is None or (refusal is not None and _says_more(refusal, best)):
            assert refusal is not None
            raise infeasible(refusal, self.options, self.limit) from refusal
        assert self.limit is not None
        needed, timeline = best.needed_bytes, best.check.timeline
        assert needed is not None, "what nothing is known of is not over the budget"
        peak = timeline[best.check.peak_index] if timeline else None
        label, text = ("", "") if peak is None else (peak.label, peak.text)
        failure, reason = best.failure, _reason(self.options)
        if failure is not None:
            defect = (
                "" if isinstance(failure, Unplannable) else f", since planning failed with {type(failure).__name__}"
            )
            reason = f"no plan at all{defect}: {failure}"
        facts = _facts_of(best, self.options)
        raise InfeasibleBudget(self.limit, needed, label, text, reason, facts) from failure


def _says_more(refusal: NoPlan, best: Attempt) -> bool:
    """Whether a refusal knows more than the best try, which was emitted: of a smaller peak, or of any."""
    return bool(best.check.unknown) or refusal.needed_bytes < best.planned_bytes


def warn_of_smallest(limit: int, needed_bytes: int) -> None:
    """Say that training goes on at the smallest peak found, which is over the budget."""
    logger.warning(
        "no plan fits memory_budget=%d bytes; training goes on at the smallest peak found, %s",
        limit,
        format_bytes(needed_bytes),
    )


def infeasible(refusal: NoPlan, options: RematOptions, limit: int | None) -> InfeasibleBudget:
    """The error that tells the user the smallest reachable peak, and what forces it."""
    problem, result = refusal.problem, refusal.result
    graph, plan = problem.graph, result.plan
    if plan is None:
        floor = peak_floor(graph, problem.costs)
        smallest, forced = floor.peak_bytes, None if floor.op is None else graph.ops[floor.op]
    else:
        timeline = simulate(graph, problem.costs, plan)
        smallest, forced = max(timeline.peak_bytes, refusal.held_bytes), graph.ops[plan.steps[timeline.peak_step]]
    name, source = ("", "") if forced is None else (forced.name, forced.source)
    budget, facts = problem.budget_bytes if limit is None else limit, facts_of(problem, result, options)
    return InfeasibleBudget(budget, smallest, name, source, _reason(options), facts)


def _facts_of(attempt: Attempt, options: RematOptions) -> BudgetFacts:
    """What is known of a step that was emitted: where it is of several joint graphs, they are not one problem."""
    one = attempt.partition
    if one is None:
        return BudgetFacts(asked=options.memory_budget.asked)
    return facts_of(one.problem, one.result, options, one.before.timeline.peak_bytes)


def _reason(options: RematOptions) -> str:
    return "" if options.max_slowdown is None else f"max_slowdown={options.max_slowdown}"
