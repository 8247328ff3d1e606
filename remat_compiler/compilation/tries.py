"""The requests that a search tries, and the try that it keeps.

If the planner finds nothing within the budget, the plan of the smallest peak is emitted and checked before the budget
is refused: emitted code may peak below the simulated peak, and the error names bytes that can be relied on.  For the
same reason, the step without a budget is emitted where no plan peaks much lower.  What a refusal names is what the
budget "min" takes, by the same requests; so a budget of the bytes that it names is kept.

`variations` has what is tried beside that: other layouts, the program's order, the step without a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.compilation.feedback import MARGIN, next_request
from remat_compiler.compilation.refusal import refusal_of_attempt, refusal_of_planner, warn_of_smallest
from remat_compiler.compilation.variations import VARIATIONS, Situation, Variation
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.ir.problem import NO_BYTES
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.step_model.graph_memory import GraphMemory

MAX_TRIES = 4
"""Most plans that are tried for each layout, until the checked peak fits and uses the budget."""
FAR = 0.03
"""A smallest peak above the budget by more than this part, found within less, is not sought once more for all of it."""


@dataclass(slots=True)
class Tries:
    """The tries of one search.

    Attributes:
        compile: Compiles the graph.
        options: The user's options.
        chooses_layout: Whether the inner compiler may give operators another layout than the program does.
        limit: The budget in bytes, if it is known already.
        minimises: Whether the smallest peak is asked for.
        trains: Whether a backward is to be expected.
        more_bytes: What emitted code is expected to take beside the simulated peak.
        native: Checked memory of the step without a budget, once that was emitted.
        refusal: The latest of the planner.
    """

    compile: Compile
    options: RematOptions
    chooses_layout: bool
    limit: int | None
    minimises: bool
    trains: bool = True
    more_bytes: int = 0
    native: GraphMemory | None = None
    refusal: NoPlan | None = None

    def run(self, request: PartitionRequest, known: Attempt | None) -> Attempt:
        """The try to keep."""
        best, may_be_over = self._best(request, known), self.options.on_infeasible == "min"
        if best is None or best.is_over(self.limit):
            best = self._smallest(request, best)
        if best is None or (best.is_over(self.limit) and not may_be_over):
            raise self._refused(best)
        # The budget is kept by the code that runs, so that is checked, too.
        if not best.real:
            best = self.compile(best.request)
        if best.is_over(self.limit):
            if not may_be_over:
                raise self._refused(best)
            assert self.limit is not None
            warn_of_smallest(self.limit, best.needed_bytes or 0)
        return replace(best, native=self.native)

    def _best(self, request: PartitionRequest, known: Attempt | None, *, trial: bool = False) -> Attempt | None:
        """The best try, which may be over the budget; `None` if the planner refused each request."""
        # An earlier outcome has its limit in bytes already.
        if known is None and request.fraction is not None:
            request, known = self.in_bytes(request, request.fraction)
        tries, earlier = self._tries(request, known, trial=trial), known
        for one in VARIATIONS:
            now = self._situation(request, tries, earlier)
            if one.may_be_better(now):
                # Kernels are compiled at once only for what is likely to be kept.
                found = self._varied(one, now, trial=trial or one.gain > 0)
                if one.keeps(now, found):
                    tries = [*tries, *found]
        return self._situation(request, tries, earlier).best

    def _situation(self, request: PartitionRequest, tries: Sequence[Attempt], known: Attempt | None) -> Situation:
        return Situation(request, tries, known, self.limit, self.minimises, self.chooses_layout, self.native)

    def _varied(self, variation: Variation, now: Situation, *, trial: bool) -> list[Attempt]:
        """The tries of a variation."""
        request = variation.changed(now)
        if variation.corrected:
            return self._tries(request, None, trial=trial)
        return [self.compile(request, real=False)]

    def in_bytes(self, request: PartitionRequest, fraction: float) -> tuple[PartitionRequest, Attempt | None]:
        """The request in bytes, and its result if that is known by then.

        The step without a budget is emitted and checked, since estimates are not exact.
        """
        unlimited = request.without_budget
        # A fraction of 1.0 asks for that very step; a plan for its bytes need not be the same.
        whole = fraction == 1.0
        native = self.compile(unlimited, real=whole or not self.trains)
        if not native.trains and native.real:
            # Inference, which nothing is planned for.
            return request, native
        # Without a checked peak the fraction stays, and the partition takes it of the simulated one.
        if not native.trains or native.check.unknown:
            return request, None
        self.native = native.check.memory
        self.limit = self.options.memory_budget.of_reference(native.check.needed_bytes)
        if whole:
            return unlimited, native
        fits = self.limit is None or native.check.needed_bytes <= self.limit
        return replace(request, fraction=None, budget_bytes=self.limit, may_be_native=fits), None

    def _tries(self, request: PartitionRequest, known: Attempt | None, *, trial: bool = False) -> list[Attempt]:
        """Tries in one layout, at most `MAX_TRIES`, until one fits and uses the budget; a trial compiles no kernels."""
        tries: list[Attempt] = []
        likely = not trial
        lower = None if known is not None else self._lower_aim(request)
        while len(tries) < MAX_TRIES:
            # An earlier process has searched already: its result is kept if it fits, even if it could be improved.
            settled = known is not None
            lowered, lower = lower, None
            try:
                attempt = known or self.compile(lowered or request, real=likely and not tries)
                known = None
            except NoPlan as refused:
                self.refusal, likely = refused, False
                if lowered is not None and not _is_far_above(refused, request.budget_bytes):
                    continue
                if self.limit is None and request.fraction is not None:
                    # The next request has a larger budget, which would be taken for the user's.
                    self.limit = refused.problem.budget_bytes
                # The smallest peak was refused already, or there is no plan to emit.
                if request.take_smallest or refused.result.plan is None:
                    break
                request = self._lowest(request)
                continue
            tries.append(attempt)
            if self.limit is None and request.fraction is not None and attempt.partitions:
                # It became bytes during the partition, as part of the simulated peak of torch's own cut.
                self.limit = attempt.aimed_bytes
            # Inductor may have fused the early loops, which the simulator does not see: plan without them first.
            if attempt.is_over(self.limit) and any(one.early_loops for one in attempt.partitions):
                request = replace(request, early_loops=False)
                continue
            # The smallest peak was taken for it: the whole budget may have a faster plan.
            if lowered is not None and attempt.planned_bytes > (lowered.budget_bytes or 0):
                continue
            following = next_request(request, attempt, self.limit)
            if following is None or (settled and not attempt.is_over(self.limit)):
                break
            request = following
        return tries

    def _lower_aim(self, request: PartitionRequest) -> PartitionRequest | None:
        """The request for so much less that emitted code is likely to fit; `None` if it needs no less."""
        budget_bytes = request.budget_bytes
        if not self.more_bytes or budget_bytes is None or self.minimises:
            return None
        aim = budget_bytes - self.more_bytes - int(MARGIN * budget_bytes)
        return replace(request, budget_bytes=aim) if aim > 0 else None

    def _lowest(self, request: PartitionRequest) -> PartitionRequest:
        """The request for the smallest peak."""
        # Without a choice of layouts both values mean the same: one of them, so that nothing is compiled twice.
        free_layout = request.free_layout and self.chooses_layout
        request = replace(request, budget_bytes=NO_BYTES, fraction=None, take_smallest=True, free_layout=free_layout)
        # Neither fits: one value each, for the same reason.  Early loops need room.
        return replace(request, may_be_native=True, early_loops=False)

    def _smallest(self, request: PartitionRequest, best: Attempt | None) -> Attempt | None:
        """What the budget "min" would take; `best` if no plan can be had."""
        if best is not None and best.failure is not None:
            return best
        tries = Tries(self.compile, self.options, self.chooses_layout, None, minimises=True, native=self.native)
        # As `graphs.question.first_request` asks: the inner compiler's own layout takes copies of weights.
        lowest = self._lowest(replace(request, free_layout=False))
        # It is refused as a rule, and kernels are compiled for what is kept.
        found = tries._best(lowest, None, trial=True)
        # The smallest peak may have been taken for the budget already, and compiled.
        return best if found is None or (best is not None and _as_good(best, found)) else found

    def _refused(self, best: Attempt | None) -> InfeasibleBudget:
        """The error for a budget that `best` does not keep, or for which there is no try at all."""
        refusal = self.refusal
        # The planner knows nothing of what is reserved, and the step without a budget is kept where plans took more.
        silent = best is not None and best.check.unknown and not best.check.reserved_bytes
        if best is None or (silent and best.request.budget_bytes is not None and refusal is not None):
            # Without any try, the planner refused each request.
            assert refusal is not None
            error = refusal_of_planner(refusal, self.options, self.limit)
            error.__cause__ = refusal
            return error
        assert self.limit is not None
        error = refusal_of_attempt(best, self.options, self.limit)
        error.__cause__ = best.failure
        return error


def _is_far_above(refused: NoPlan, budget_bytes: int | None) -> bool:
    """Whether the smallest peak that a planner found is so far above the budget that it need not be asked once more."""
    assert budget_bytes is not None
    return refused.result.plan is not None and refused.needed_bytes > (1 + FAR) * budget_bytes


def _as_good(one: Attempt, other: Attempt) -> bool:
    """Whether one try takes the same bytes as another, both known, and no more time."""
    is_known = not one.check.unknown and not other.check.unknown
    return is_known and one.needed_bytes == other.needed_bytes and one.added_ns <= other.added_ns
