"""The requests that a search tries, and the try that it keeps.

If the planner finds nothing within the budget, the plan of the smallest peak is emitted and checked before the budget
is refused: emitted code may peak below the simulated peak, and the error names bytes that can be relied on.  For the
same reason, the step without a budget is emitted where no plan peaks much lower.  What a refusal names is what the
budget "min" takes, by the same requests; so a budget of the bytes that it names is kept.

Convolutions are tried twice: first in the layout that the inner compiler prefers, which is faster and takes copies of
their weights; then in the program's own, if the copies do not fit, or may be why a plan recomputes much.

Plans may change the order of the backward, which Inductor keeps to but for loops that it fuses.  Where that does not
fit, the program's order is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.compilation.feedback import MARGIN, best_of, limit_bytes, next_request
from remat_compiler.compilation.refusal import refusal_of_attempt, refusal_of_planner, warn_of_smallest
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.ir.problem import NO_BYTES
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.step_model.graph_memory import GraphMemory

MAX_TRIES = 4
"""Most plans that are tried for each layout, until the checked peak fits and uses the budget."""
NEAR = 0.8
"""Part of the simulated peak without a budget above which a smallest peak is held against the emitted one."""
LAYOUT_GAIN = 0.05
"""Recomputation, as a fraction of the step, that the faster layout of the inner compiler may add."""


class Tries:
    """The tries of one search.

    Args:
        compile_: Compiles the graph.
        options: The user's options.
        chooses_layout: Whether the inner compiler may give operators another layout than the program does.
        limit: The budget in bytes, if it is known already.
        minimises: Whether the smallest peak is asked for.
        trains: Whether a backward is to be expected.
        more_bytes: What emitted code is expected to take beside the simulated peak.
    """

    def __init__(
        self,
        compile_: Compile,
        options: RematOptions,
        chooses_layout: bool,
        limit: int | None,
        minimises: bool,
        *,
        trains: bool = True,
        more_bytes: int = 0,
    ) -> None:
        self.compile = compile_
        self.more_bytes = more_bytes
        self.trains = trains
        self.options = options
        self.chooses_layout = chooses_layout
        self.limit = limit
        self.minimises = minimises
        self.refusal: NoPlan | None = None
        self.native: GraphMemory | None = None

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
        tries = self._in_both_layouts(request, known, trial=trial)
        # In one layout only, that of fewer copies: a third series of tries would take as long as the first two.
        if request.reorders and self._order_costs(tries):
            free_layout = request.free_layout and not self.chooses_layout
            in_order = replace(request, reorders=False, free_layout=free_layout)
            tries += self._tries(in_order, None, trial=trial)
        # Within 0 bytes, where all are over, the lowest peak is the best.
        best = best_of(tries, 0 if self.minimises else self.limit)
        if best is None:
            return None
        unplanned = self._unplanned(request)
        if best.is_over(self.limit) and self._may_be_lower(unplanned, best):
            best = self._lower(best, unplanned)
        if self._moves_cost_memory(best):
            best = self._lower(best, best.request.without_transfers)
        if self.minimises:
            best = self._lowest_unplanned(best, unplanned)
        return best

    def _lowest_unplanned(self, best: Attempt, unplanned: PartitionRequest) -> Attempt:
        """The lower of `best` and the step without a budget, in either layout: that step is one that can be had."""
        layouts = (unplanned, replace(unplanned, free_layout=True)) if self.chooses_layout else (unplanned,)
        for one in [one for one in layouts if self._may_be_lower(one, best)]:
            best = self._lower(best, one)
        return best

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

    def _in_both_layouts(self, request: PartitionRequest, known: Attempt | None, *, trial: bool) -> list[Attempt]:
        """Tries in the layout that the inner compiler prefers, and in the program's own if that may be better."""
        tries = self._tries(request, known, trial=trial)
        if not request.free_layout or not self.chooses_layout:
            return tries
        # Starting from the first request: the first layout's corrections do not apply to the second.
        request = replace(request, free_layout=False)
        if self._needs_other_layout(tries):
            return [*tries, *self._tries(request, None, trial=trial)]
        if self._copies_may_cost(tries, known):
            return self._faster_layout(tries, self._tries(request, None, trial=True))
        return tries

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
                if lowered is not None:
                    continue
                if self.limit is None and not self.minimises:
                    # The next request has a larger budget, which would be taken for the user's.
                    self.limit = refused.problem.budget_bytes
                # The smallest peak was refused already, or there is no plan to emit.
                if request.take_smallest or refused.result.plan is None:
                    break
                request = self._lowest(request)
                continue
            tries.append(attempt)
            if self.limit is None and not self.minimises:
                self.limit = limit_bytes(self.options.memory_budget, attempt)
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

    def _lower(self, best: Attempt, request: PartitionRequest) -> Attempt:
        """The lower of `best` and what `request` gives; of equal peaks, the faster."""
        other = self.compile(request, real=False)
        # A peak that is not known is no lower one.
        if other.check.unknown:
            return best
        return min(best, other, key=lambda one: (one.needed_bytes or 0, one.added_ns))

    def _unplanned(self, request: PartitionRequest) -> PartitionRequest:
        """The request for the step without a budget beside the same other graphs."""
        return replace(request.without_budget, between_bytes=request.between_bytes)

    def _moves_cost_memory(self, best: Attempt) -> bool:
        """Whether the smallest peak is asked for, and moving values misses the one that was planned."""
        if not self.minimises or not best.request.offload_bytes:
            return False
        return bool(best.partitions) and not best.check.unknown and (best.needed_bytes or 0) > best.planned_bytes

    def _may_be_lower(self, unplanned: PartitionRequest, best: Attempt) -> bool:
        """Whether the step without a budget may have a lower peak.

        Inductor may fuse more of that step than the simulator foresees.
        """
        if not best.partitions or best.check.unknown or best.request.budget_bytes is None:
            return False
        # It was emitted, in the inner compiler's layout if that chooses one, and is higher.
        emitted = self.native if unplanned.free_layout or not self.chooses_layout else None
        if emitted is not None and emitted.peak_bytes > (best.needed_bytes or 0):
            return False
        unbudgeted = sum(one.before.timeline.peak_bytes for one in best.partitions)
        return (best.needed_bytes or 0) > NEAR * unbudgeted

    def _needs_other_layout(self, tries: Sequence[Attempt]) -> bool:
        """Whether the inner compiler's layout does not fit, or may be higher where the smallest peak is asked for."""
        # Planning failed, which another layout does not change.
        if any(one.failure is not None for one in tries):
            return False
        if self.minimises:
            return True
        best = best_of(tries, self.limit)
        return best is None or best.is_over(self.limit)

    def _copies_may_cost(self, tries: Sequence[Attempt], known: Attempt | None) -> bool:
        """Whether the program's layout, which takes no copies, may save much of the time that the best try adds."""
        best = best_of(tries, self.limit)
        # An earlier process has compared the layouts already.
        if best is None or best is known:
            return False
        return any(one.copies_inputs for one in best.partitions) and best.added_ns > LAYOUT_GAIN * best.step_ns

    def _faster_layout(self, tries: list[Attempt], others: list[Attempt]) -> list[Attempt]:
        """The tries of the inner compiler's layout, or `others` if those save so much time that it is slower in all."""
        best, other = best_of(tries, self.limit), best_of(others, self.limit)
        if best is None or other is None or other.failure is not None or other.is_over(self.limit):
            return tries
        return others if best.total_ns - other.total_ns > LAYOUT_GAIN * best.step_ns else tries

    def _order_costs(self, tries: Sequence[Attempt]) -> bool:
        """Whether the planned order does not fit once Inductor has fused its loops, so that the program's own may."""
        best = best_of(tries, 0 if self.minimises else self.limit)
        if best is None or best.failure is not None or best.request.inner != "inductor" or best.check.unknown:
            return False
        if self.minimises:
            return bool(best.partitions) and (best.needed_bytes or 0) > best.planned_bytes
        return best.is_over(self.limit)

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
        tries = Tries(self.compile, self.options, self.chooses_layout, None, minimises=True)
        tries.native = self.native
        # As `pipeline.first_request` asks: the inner compiler's own layout takes copies of weights.
        lowest = self._lowest(replace(request, free_layout=False))
        # It is refused as a rule, and kernels are compiled for what is kept.
        return tries._best(lowest, None, trial=True) or best

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
