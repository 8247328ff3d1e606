"""The errors and the warning for a budget that cannot be kept: the budget, the smallest peak, and what forces it."""

from __future__ import annotations

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.facts import facts_of
from remat_compiler.errors import BudgetFacts, InfeasibleBudget, Unplannable
from remat_compiler.ir.graph import Op
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import NoPlan
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import simulate
from remat_compiler.units import format_bytes, told_apart

logger = logger_of(__name__)


def refusal_of_planner(refusal: NoPlan, options: RematOptions, limit_bytes: int | None) -> InfeasibleBudget:
    """The error for a budget within which the planner found no plan.

    Args:
        refusal: The planner's refusal.
        options: The user's options.
        limit_bytes: The user's budget; `None` for that of the planner's problem.
    """
    problem, result = refusal.problem, refusal.result
    graph, plan = problem.graph, result.plan
    # Without a plan only the lower bound is certain; with one, the smallest peak is one that can be had.
    if plan is None:
        floor = peak_floor(graph, problem.costs)
        smallest, forced = floor.peak_bytes, None if floor.op is None else graph.ops[floor.op]
    else:
        timeline = simulate(graph, problem.costs, plan)
        smallest, forced = max(timeline.peak_bytes, refusal.held_bytes), graph.ops[plan.steps[timeline.peak_step]]
    name = "" if forced is None else forced.name
    budget = problem.budget_bytes if limit_bytes is None else limit_bytes
    facts = facts_of(problem, result, options)
    return InfeasibleBudget(budget, smallest, name, _place(forced), _limits(options), facts)


def refusal_of_attempt(attempt: Attempt, options: RematOptions, limit_bytes: int) -> InfeasibleBudget:
    """The error for a budget that is below the smallest peak that was emitted.

    Args:
        attempt: The try of that peak.
        options: The user's options.
        limit_bytes: The user's budget.
    """
    needed, failure = attempt.needed_bytes, attempt.failure
    assert needed is not None, "what nothing is known of is not over the budget"
    name, source = _at_the_peak(attempt)
    reason = _limits(options)
    # The user's limits did not force this peak: nothing was planned within them.
    if failure is not None:
        foreseen = isinstance(failure, Unplannable)
        defect = "" if foreseen else f", since planning failed with {type(failure).__name__}"
        reason = f"no plan at all{defect}: {failure}"
    elif attempt.check.reserved_bytes > attempt.check.peak_bytes:
        pieces = f'budget_of="reserved": its live bytes peak at {format_bytes(attempt.check.peak_bytes)}'
        reason = f"{reason}, {pieces}" if reason else pieces
    one = attempt.partition
    # Several joint graphs are several problems: there are no facts about them as a whole.
    facts = BudgetFacts(asked=options.memory_budget.asked)
    if one is not None:
        facts = facts_of(one.problem, one.result, options, one.before.timeline.peak_bytes)
    return InfeasibleBudget(limit_bytes, needed, name, source, reason, facts)


def _at_the_peak(attempt: Attempt) -> tuple[str, str]:
    """The operator at the peak of an attempt, and its line; empty if none can be named."""
    one = attempt.partition
    plan = None if one is None else one.result.plan
    # The plan knows the user's line, and what was emitted has names of the inner compiler.
    if one is not None and plan is not None and plan.steps:
        graph = one.problem.graph
        op = graph.ops[plan.steps[simulate(graph, one.problem.costs, plan).peak_step]]
        if _place(op):
            return op.name, _place(op)
    timeline = attempt.check.timeline
    peak = timeline[attempt.check.peak_index] if timeline else None
    return ("", "") if peak is None else (peak.label, peak.text)


def _place(op: Op | None) -> str:
    """The user's line, and the module, of an operator, as far as they are known."""
    if op is None:
        return ""
    return f"{op.source} {op.module}".strip() if op.source else f"module {op.module}" if op.module else ""


def refusal_of_whole(error: InfeasibleBudget, share_bytes: int, whole_bytes: int) -> InfeasibleBudget:
    """A refusal of one graph's share of the budget, in bytes of the whole budget that the user named."""
    # Each byte that the share lacks is one that the whole budget lacks.
    missing = error.smallest_peak_bytes - share_bytes
    reason = f"{error.reason}, " if error.reason else ""
    reason += f"where other graphs of the step take all but {share_bytes} bytes"
    least = whole_bytes + missing
    return InfeasibleBudget(whole_bytes, least, error.forced_by, error.source, reason, error.facts)


def warn_of_smallest(limit_bytes: int, needed_bytes: int) -> None:
    """Warn that training goes on at the smallest peak found, which is over the budget."""
    logger.warning(
        "no plan fits memory_budget=%s; training goes on at the smallest peak found, %s",
        *told_apart(limit_bytes, needed_bytes),
    )


def _limits(options: RematOptions) -> str:
    """The user's limit on plans other than the budget; empty if there is none."""
    return "" if options.max_slowdown is None else f"max_slowdown={options.max_slowdown}"
