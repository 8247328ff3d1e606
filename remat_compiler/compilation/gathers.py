"""A search that has parameters gathered again in the backward, where the budget cannot be kept otherwise.

    within the budget without that? ─► yes: done, no rank waits for another
            │ no
            ▼
    plan again, gathers being repeatable at the price of the link ─► all ranks vote ─► "yes": done
                                                                                 └──► "no": refused as before

Only then, because it binds the ranks to each other (`distributed.gathers`): all must run this graph in the same steps,
and a program that trains without it must not come to depend on that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.distributed.gathers import GatherAgreement, NoOthers
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.partition.collectives import gathers_inputs, order_of, program_of, repeats_gathers
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan, Partition

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class GatheringSearch(BudgetSearch):
    """See the module.

    Attributes:
        agreement: How ranks agree on repeated gathers.
        program: Digest of settings, see `partition.session.Session`.
    """

    agreement: GatherAgreement = field(default_factory=NoOthers)
    program: str = ""

    def run(self, goal: SearchGoal) -> tuple[Attempt, int | None]:
        """The try to keep, and the budget in bytes; see `BudgetSearch.run`.

        Raises:
            InfeasibleBudget: Nothing fits that all ranks would run.
            RanksDiffer: The other ranks run, or may run, what this one would not.
        """
        watched = _Watched(self.compile_)
        refused: InfeasibleBudget | None = None
        attempt: Attempt | None = None
        limit = goal.limit_bytes
        try:
            attempt, limit = BudgetSearch.run(replace(self, compile_=watched), goal)
        except InfeasibleBudget as error:
            refused = error
        if (attempt is None or attempt.is_over(limit)) and watched.has_gathers and self._may_gather(goal):
            try:
                found = self._gathering(goal)
            except InfeasibleBudget as error:
                # Its smallest peak is the smaller one.
                refused, found = error, None
            if found is not None:
                return found
        if attempt is None:
            assert refused is not None
            raise refused
        if not self.settled(attempt):
            # An earlier process ended with repeated gathers, which the ranks of this job do not agree on.
            plain = replace(goal, request=replace(goal.request, gathers=False), known=None)
            attempt, limit = BudgetSearch.run(self, plain)
            self.settled(attempt)
        return attempt, limit

    def settled(self, attempt: Attempt) -> bool:
        """Whether `attempt` may run: all ranks repeat the gathers that it repeats.

        Raises:
            RanksDiffer: They repeat others.
        """
        with_gathers = [one for one in attempt.partitions if gathers_inputs(one.problem.graph)]
        repeating = [one for one in with_gathers if _repeats(one)]
        if not repeating:
            for one in with_gathers:
                self.agreement.runs_in_order(program_of(one.joint.graph, self.program))
            return True
        # One vote for one graph: after "yes" for one and "no" for another, neither could be run.
        if len(attempt.partitions) > 1:
            return False
        (one,) = repeating
        order = order_of((one.graphs.forward, one.graphs.backward), map(str, attempt.collectives))
        return self.agreement.vote(program_of(one.joint.graph, self.program), order, one.graphs.plan)

    def _may_gather(self, goal: SearchGoal) -> bool:
        """Whether the goal is a budget of this graph alone, at fixed sizes."""
        # In a step of several graphs, or for the lowest peak, there is a plan that needs no agreement.
        own = not goal.takes_smallest and not goal.request.between_bytes and not goal.request.sizes
        return own and not self.options.memory_budget.minimises and not goal.request.gathers

    def _gathering(self, goal: SearchGoal) -> tuple[Attempt, int | None] | None:
        """The try that repeats gathers; `None` if not all ranks do it.

        Raises:
            InfeasibleBudget: That does not fit either.
        """
        options = replace(self.options, on_infeasible="error")
        request = replace(goal.request, gathers=True, take_smallest=False)
        found, limit = BudgetSearch.run(replace(self, options=options), replace(goal, request=request, known=None))
        if not self.settled(found):
            return None
        logger.info("the budget is kept by gathering parameters again in the backward")
        return found, limit


class _Watched:
    """Compiles, and tells whether a graph had gathers that could be repeated."""

    def __init__(self, compile_: Compile) -> None:
        self.compile_ = compile_
        self.has_gathers = False

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        try:
            attempt = self.compile_(request, real)
        except NoPlan as refused:
            self.has_gathers |= gathers_inputs(refused.problem.graph)
            raise
        self.has_gathers |= any(gathers_inputs(one.problem.graph) for one in attempt.partitions)
        return attempt


def _repeats(partition: Partition) -> bool:
    plan = partition.result.plan
    return plan is not None and repeats_gathers(partition.problem.graph, plan)
