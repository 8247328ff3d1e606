"""A graph planned for the sizes of its inputs: alone, or with a part of the budget until its step is known."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.offloading import with_room
from remat_compiler.compilation.outcome import PART_ONLY, StoredOutcome
from remat_compiler.compilation.refusal import warn_of_smallest
from remat_compiler.compilation.search import SearchGoal
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.gradients.inputs import accumulated_inputs
from remat_compiler.graphs.question import Question
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.log import logger_of
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.first_step import first_request_of_several, has_fixed_sizes, part_of_fraction
from remat_compiler.step_budget.fixed_plans import FixedPlans
from remat_compiler.step_budget.graph_plans import GraphPlans

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The compilation to run.

    Attributes:
        attempt: The compilation.
        has_part: Whether it was planned for a part of the budget.
        of_several: Whether an earlier process planned it for a fraction of the peak of several graphs.
        refused_alone: Why the graph cannot make up a step alone; `None` if it may, or that is not known.
    """

    attempt: Attempt
    has_part: bool = False
    of_several: bool = False
    refused_alone: InfeasibleBudget | None = None


def at_fixed_sizes(question: Question) -> Callable[..., Any]:
    """Plan the graph for the sizes of its inputs.  The budget is enforced for these sizes only.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    saved = torch_compat.saved_compilation()
    # Without Dynamo's context it could not be compiled again, nor if its sizes change.
    context = saved if has_fixed_sizes(question.inputs) else None
    found = _found(question, may_share=context is not None, may_be_one_of_several=saved is not None)
    if not found.attempt.trains:
        return question.untrained(found.attempt)
    plans, first, outcome = GraphPlans(), question.first, question.outcome
    if context is not None:
        # Twins without data: the real inputs must not stay alive until the step is known.
        again = question.compiler.with_inputs(torch_compat.fake_twins(question.inputs)).run
        plans = FixedPlans(
            replace(question.search, compile_=again),
            SearchGoal(first),
            context,
            accumulated=accumulated_inputs(question.options, question.inputs),
            pinned=question.on_gpu,
        )
    # The outcome tells by the attempt whether it has reported it.
    attempt = outcome.attempt = with_room(found.attempt, 1, question.on_gpu, outcome.reports, first.offload_bytes)
    whole = None if question.options.memory_budget.minimises else first.budget_bytes
    return CompiledGraph(
        *(attempt, question.options, whole, outcome.keep, plans, COORDINATOR, question.inputs),
        has_part=found.has_part,
        of_several=found.of_several and context is not None,
        refused_alone=found.refused_alone,
        reports=lambda: outcome.reports,
    )


def _found(question: Question, *, may_share: bool, may_be_one_of_several: bool) -> _Found:
    """The compilation to run, reported.

    Args:
        question: The graph.
        may_share: Whether it can be compiled again once its step is known.
        may_be_one_of_several: Whether Dynamo compiles it, so that other graphs may follow.
    """
    gm, options, earlier = question.compiler.gm, question.options, question.earlier
    # What the graphs of a step move together, no plan of one of them knows: their room is shared with the budget.
    part, last, in_part = None, None, question.first.without_transfers
    if may_share:
        part = first_request_of_several(gm, options, in_part, COORDINATOR, question.inputs)
    if may_be_one_of_several:
        # A fraction of this graph's own peak may be infeasible, and that of the step's peak not.
        last = part_of_fraction(gm, options, in_part, COORDINATOR)
    # A fraction of the peak of several graphs is no answer for one that stands alone.
    of_several = earlier is not None and question.first.fraction is not None and earlier.of_several
    known = None
    if earlier is not None and (part is not None or last is not None or not of_several):
        known = _again(question, earlier)
    if earlier is not None and known is not None:
        # An earlier outcome knows the graph's own budget already.
        return _from_earlier(question, earlier, known, of_several, last)
    if part is not None:
        return _in_part(question, part, None)
    return _searched(question, SearchGoal(question.first), earlier, final=True, last=last)


def _from_earlier(
    question: Question, earlier: StoredOutcome, known: Attempt, of_several: bool, last: PartitionRequest | None
) -> _Found:
    """The compilation by what an earlier process ended with."""
    if known.trains and not known.partitions:
        # The code came from the inner compiler's cache, so nothing was planned: the stored reports stand for it.
        attempt = replace(known, native=earlier.native)
        question.outcome.take_over(attempt, earlier)
        return _Found(attempt, of_several=of_several)
    goal = SearchGoal(known.request, known, earlier.limit_bytes)
    # Until its step is known, what is kept says that other graphs are in it.
    found = _searched(question, goal, earlier, final=not of_several, last=last)
    return replace(found, of_several=of_several)


def _searched(
    question: Question, goal: SearchGoal, earlier: StoredOutcome | None, *, final: bool, last: PartitionRequest | None
) -> _Found:
    """The compilation that a search ends with; if the budget is refused, that by the request `last`, if any."""
    try:
        attempt, limit = question.search.run(goal)
    except InfeasibleBudget as error:
        if last is None:
            raise
        logger.info("more graphs may follow, with which the step may fit: %s", error)
        # A copy has no traceback, whose frames would keep all of the search alive.
        return _in_part(question, last, copy(error))
    if earlier is not None and attempt.native is None:
        attempt = replace(attempt, native=earlier.native)
    question.outcome.keep(attempt, limit, final=final)
    return _Found(attempt)


def _in_part(question: Question, part: PartitionRequest, refused: InfeasibleBudget | None) -> _Found:
    """The compilation for a part of the budget, by one try."""
    search = question.search
    attempt = search.one_try(part)
    search.settled(attempt)
    question.outcome.keep(attempt, part.budget_bytes, PART_ONLY, final=False)
    return _Found(attempt, has_part=True, refused_alone=refused)


def _again(question: Question, earlier: StoredOutcome) -> Attempt | None:
    """The compilation by an earlier outcome's request; `None` if it is refused by now, or over the budget."""
    try:
        again = question.compiler.run(earlier.request)
    except NoPlan:
        return None
    limit = earlier.limit_bytes
    if limit is None or not again.is_over(limit):
        return again
    # Planned anew: whether other graphs may follow, with which it may fit, decides what is refused, and when.
    if question.options.on_infeasible != "min":
        return None
    # With partitions, the planner ran: the search goes on from this try, and warns itself.
    if not again.partitions:
        warn_of_smallest(limit, again.check.needed_bytes)
    return again
