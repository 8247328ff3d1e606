"""The search for the request under which the checked peak of one graph fits the budget and uses it.

    request ─► compile ─► dry run ─► fits, and uses the budget ─► keep
                  ▲           │
                  └───────────┘ over the budget: plan for less; far below it: plan for more

The first compilation is a real one, since it is nearly always the last.  Further tries only generate code, which is
enough for the dry run, and the one that is kept is then compiled.

`tries` says what is tried beside this loop, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.compilation.refusal import refusal_of_whole
from remat_compiler.compilation.tries import Tries
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest


@dataclass(frozen=True, slots=True)
class SearchGoal:
    """The goal of one search.

    Attributes:
        request: The first request.
        known: Result of an earlier compilation: it is the first try, and the last one if it still fits.
        limit_bytes: The budget, if it is another than that of the request.
        whole_bytes: The budget of the whole step, if the graph has a share of it: a refusal is worded in its bytes.
        takes_smallest: Whether to take the smallest peak if nothing fits, without a warning and whatever the options
            say, because the peak of the whole step decides later.
    """

    request: PartitionRequest
    known: Attempt | None = None
    limit_bytes: int | None = None
    whole_bytes: int | None = None
    takes_smallest: bool = False


@dataclass(frozen=True, slots=True)
class BudgetSearch:
    """Compiles a graph within a budget.

    Attributes:
        compile_: Compiles it by one request.
        options: The user's options.
        chooses_layout: Whether the inner compiler may give operators another layout than the program does.
        trains: Whether a backward is to be expected.
        more_bytes: What emitted code is expected to take beside the simulated peak.
    """

    compile_: Compile
    options: RematOptions
    chooses_layout: bool
    trains: bool = True
    more_bytes: int = 0

    def run(self, goal: SearchGoal) -> tuple[Attempt, int | None]:
        """The try to keep, and the budget in bytes (`None` for none).

        Raises:
            InfeasibleBudget: Nothing fits, and neither the goal nor the options say to take the smallest peak.
        """
        # With "error" the search raises instead of warning, and the error is answered below.
        options = replace(self.options, on_infeasible="error") if goal.takes_smallest else self.options
        chooses_layout = self.chooses_layout and options.inner == "inductor"
        minimises = options.memory_budget.minimises
        compile_, limit = _Memory(self.compile_), self._limit_of(goal)
        search = Tries(compile_, options, chooses_layout, limit, minimises, self.trains, self.more_bytes)
        try:
            return search.run(goal.request, goal.known), search.limit
        except InfeasibleBudget as error:
            if goal.takes_smallest:
                return self.compile_(replace(goal.request, take_smallest=True)), goal.limit_bytes
            whole_bytes, share_bytes = goal.whole_bytes, goal.limit_bytes
            if whole_bytes is None or share_bytes is None:
                raise
            # The share is the whole budget, and no other graph adds to the held bytes: the error is right as it is.
            if share_bytes == whole_bytes and not goal.request.between_bytes:
                raise
            raise refusal_of_whole(error, share_bytes, whole_bytes) from error

    def _limit_of(self, goal: SearchGoal) -> int | None:
        """The budget in bytes; `None` for none, and for a fraction of a peak that is not known yet."""
        if goal.limit_bytes is not None or self.options.memory_budget.minimises:
            return goal.limit_bytes
        return goal.request.budget_bytes

    def one_try(self, request: PartitionRequest) -> Attempt:
        """One try, for as long as the other graphs of the step are not known; a fraction is one of the emitted peak."""
        known: Attempt | None = None
        tries = Tries(self.compile_, self.options, False, None, minimises=False, trains=self.trains)
        if request.fraction is not None:
            # Its peak is needed later anyway, and the more exact the first plan, the likelier it may stay.
            in_bytes, known = tries.in_bytes(request, request.fraction)
            # Graphs share a budget by what they take without one, which torch's own partition tells.
            request = replace(in_bytes, fraction=request.fraction)
        return replace(known or self.compile_(request), native=tries.native)


class _Memory:
    """Compiles each request once where no kernels are needed: the tries of a refusal are partly those of its budget."""

    def __init__(self, compile_: Compile) -> None:
        self.compile = compile_
        self.made: dict[PartitionRequest, Attempt] = {}

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        found = self.made.get(request)
        if found is None or (real and not found.real):
            found = self.made[request] = self.compile(request, real)
        return found
