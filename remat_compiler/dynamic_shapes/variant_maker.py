"""Variants of a graph whose sizes change: what to compile, and when.

    first         planned for the sizes of the first call; Inductor's own partition if that fits
    larger sizes  no variant fits a call: compile for up to twice its sizes, less if that would cost much more; the
                  variant serves every size up to there that no other variant fits
    needed        not even that variant fits: compile for the sizes of the call
    better        once recomputation has cost as much time as one compilation, compile for the size whose own plan would
                  have saved most, if that saving exceeds a compilation; at `max_variants` the least useful variant is
                  evicted, and the saving must also cover what its eviction costs

So a call waits for the compiler only if its sizes go far beyond all earlier ones, and a better variant takes no longer
to compile than it saves.  All variants are compiled from one captured graph, under what Dynamo knew of it.  The choice
of better variants depends on measured step times, on which ranks would have to agree (`distributed.agreement`); the
plan of each variant depends only on the sizes and the limit that it is planned for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

from remat_compiler import torch_compat
from remat_compiler.capture.source import input_name
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.lateness import told_if_late
from remat_compiler.compilation.search import SearchGoal
from remat_compiler.distributed.agreement import Point
from remat_compiler.dry_run.peak_formula import condition_on
from remat_compiler.dynamic_shapes.arena_guard import ArenaGuard
from remat_compiler.dynamic_shapes.margin import Margin
from remat_compiler.dynamic_shapes.mimose.sheltered_phase import Predict
from remat_compiler.dynamic_shapes.peak_guard import PeakGuard
from remat_compiler.dynamic_shapes.room_by_size import MovedBySize
from remat_compiler.dynamic_shapes.sampled_peak import SampledPeak
from remat_compiler.dynamic_shapes.variant import KnownMemory, NothingKnown, Use, Variant
from remat_compiler.dynamic_shapes.variant_context import VariantContext
from remat_compiler.dynamic_shapes.variant_store import LARGER_SIZES
from remat_compiler.dynamic_shapes.variant_value import WORTH_IT, SizeCostModel
from remat_compiler.errors import InfeasibleBudget, RematError, UnservedSizes
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.stats import count
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.units import format_bytes, told_apart

logger = logger_of(__name__)

LEFT_BEHIND = "what the graph leaves behind for the rest of the step counted"
"""Why a variant is refused whose peak fits."""
NO_OTHER_FITS = 0.95
"""If even this part of the smallest peak of all variants exceeds the budget, no further variant is compiled."""
BACKOFF = 2.0
"""Factor on the seconds to lose before the next search for a better variant, after one that found none."""


class VariantMaker:
    """Makes the variants of one graph; see `dynamic_shapes.variant.Provider`.

    Args:
        context: How the graph is compiled.
        options: The user's options.
        first: The compilation for the first call.
        seconds: The time that it took.

    Attributes:
        pays: How many times over a better variant must save its compilation while there is a place for it; tests and
            benchmarks set it, infinity for no better variants.
    """

    pays = 1.0

    def __init__(self, context: VariantContext, options: RematOptions, first: Attempt, seconds: float) -> None:
        self.context = context
        self.options = options
        self.compile_s = seconds
        self.margin = Margin()
        self.layers_at: Predict = lambda sizes: ()
        self._most = [symbol.upper for symbol in context.symbols]
        self._reach: tuple[int, ...] = ()
        self._spare: list[Variant] = []
        self._refused: dict[tuple[int, ...], RematError] = {}
        self._hopeless = False
        self._told_beside = False
        self._searches = 0
        self._first = first
        self._curve: SizeCostModel | None = None
        self.first_sizes = tuple(number for _, number in first.request.sizes)
        self.threshold_s = self._next_loss_s([self.first_sizes])

    def variant(self, attempt: Attempt, sizes: tuple[int, ...], label: str, allowance: Allowance) -> Variant:
        """A variant of what was compiled: the callable with its peak by size."""
        count("variants")
        made = Variant(
            attempt.compiled,
            self._known(attempt, sizes),
            _added(attempt),
            sizes,
            label,
            self.context.input_bytes,
            replace(self.margin),  # a copy: it begins with what all variants taught, and grows by its own steps
            attempt.arenas,
            MovedBySize.of(attempt, self.context.room, [symbol.name for symbol in self.context.symbols]),
        )
        # A plan that misses the limit at its own sizes is not worth repeating in the next process.  One for larger
        # sizes may miss it there: it is made for the sizes below.
        if label == LARGER_SIZES or made.fits(sizes, allowance):
            self.context.store.add(label, sizes, free=not made.added)
        return made

    def after_change(self, variants: Sequence[Variant], before: Allowance, allowance: Allowance) -> Variant | None:
        """See `dynamic_shapes.variant.Provider`."""
        self._refused.clear()
        self._hopeless, self._curve = False, None
        # No variant gets better where gradients from before the step leave less than it was planned for.
        had_more = before.is_whole and allowance.limit_bytes <= before.limit_bytes
        if allowance.spare_bytes and had_more:
            return None
        added = _added(self._first)
        # Several variants leave a choice already, and one that recomputes nothing cannot be improved on.
        if len(variants) > 1 or not added:
            return None
        least = self._curve_of_first(allowance).added_at(self.first_sizes)
        if least and least > added - WORTH_IT:
            return None
        try:
            return self._fitting(self.first_sizes, "first", allowance)
        except InfeasibleBudget as error:
            logger.info("no better variant for the first sizes: %s", error)
            return None

    def _known(self, attempt: Attempt, sizes: tuple[int, ...]) -> KnownMemory:
        """The peak by size: its formula, or, without one or with ``estimator="quadratic"``, a fit to dry runs."""
        names = [symbol.name for symbol in self.context.symbols]
        conditions = self.context.assumptions.conditions(names)
        # Without conditions on the sizes alone nobody can tell, before a call, whether the code may run at its sizes.
        if conditions is None or attempt.check_at is None:
            logger.warning("nothing is known of the peak of a variant, which is not used: its sizes are restricted")
            return NothingKnown()
        if attempt.formula is not None and self.options.estimator == "symbolic":
            # The dry run found its own conditions; those of the compilers come on top.
            formula = replace(attempt.formula, conditions=(*attempt.formula.conditions, *conditions))
            slack_bytes = attempt.check.slack_bytes + attempt.check.more_blocks_bytes
            guard = PeakGuard(formula, self.context.session.workspace, sizes, slack_bytes)
            return guard if attempt.arenas is None else ArenaGuard(guard, attempt.arenas)
        if attempt.arenas is not None:
            attempt.arenas.drop()
        check_at, holds = attempt.check_at, condition_on(names, conditions)
        return SampledPeak(lambda at: check_at(dict(zip(names, at))), holds=holds)

    def variants_for(
        self, sizes: tuple[int, ...], variants: Sequence[Variant], allowance: Allowance
    ) -> Sequence[Variant]:
        """New variants for `sizes`; the last one runs them.

        A variant for larger sizes comes first; if it does not fit `sizes`, a variant planned for them follows.  Under
        ``on_infeasible="min"``, once nothing fits some sizes, the variant of the smallest peak also runs all sizes that
        take clearly more.

        Raises:
            InfeasibleBudget: Nothing fits, and the options do not say to take the smallest peak.
            UnservedSizes: The compiled code may not run at `sizes`.
        """
        needs = [(variant.needed_bytes(sizes, allowance), i) for i, variant in enumerate(variants)]
        least, i = min(((needed, i) for needed, i in needs if needed is not None), default=(0, 0))
        # A plan over the budget was accepted before: if even the best is far over it here, no compilation would help.
        if self._hopeless and least * NO_OTHER_FITS > allowance.limit_bytes and self._is_accepted(least, allowance):
            return [variants[i]]
        if sizes in self._refused:
            # Refused sizes must not cost a compilation at every call.
            raise copy(self._refused[sizes])
        made = self._looked_ahead(sizes, allowance)
        fitting = [variant for variant in made if variant.fits(sizes, allowance)]
        if fitting:
            return [*(variant for variant in made if variant is not fitting[0]), fitting[0]]
        try:
            needed = self._needed(sizes, allowance)
            peak = needed.needed_bytes(sizes, allowance)
            if peak is None:
                raise UnservedSizes(self._named(sizes))
            if not self._is_accepted(peak, allowance):
                # The search heeds the peak and what is held, but not what is left behind, which no plan can lower.
                whole_bytes = self.context.request.budget_bytes or 0
                least = whole_bytes + peak - allowance.limit_bytes
                raise InfeasibleBudget(whole_bytes, least, reason=LEFT_BEHIND)
        except (InfeasibleBudget, UnservedSizes) as error:
            # The error is raised before the caller gets `made`: kept for the next call, or its compilation is lost.
            # A copy of the error has no traceback, whose frames would hold on to the step that failed.
            self._spare, self._refused[sizes] = made, copy(error)
            raise
        # What is accepted over the limit here decides for sizes that take more, without a compilation for each.
        self._hopeless |= peak > allowance.limit_bytes
        return [*made, needed]

    def _is_accepted(self, peak_bytes: int, allowance: Allowance) -> bool:
        """Whether a variant that takes this much may run sizes for which there is no better one."""
        return self.options.on_infeasible == "min" or peak_bytes <= allowance.limit_bytes + allowance.spare_bytes

    def _needed(self, sizes: tuple[int, ...], allowance: Allowance) -> Variant:
        """A variant planned for `sizes`; where none fits, that of the smallest peak, if it keeps to the spare bytes."""
        sizes = self.context.store.for_sizes(sizes, self._most, ahead=False)
        try:
            return self._fitting(sizes, "needed", allowance)
        except InfeasibleBudget:
            if not allowance.spare_bytes:
                raise
            made = self._smallest(sizes, "smallest", allowance)
            peak = None if made is None else made.needed_bytes(sizes, allowance)
            if made is None or peak is None or not self._is_accepted(peak, allowance):
                raise
        self._say_beside(sizes, peak, allowance)
        return made

    def _say_beside(self, sizes: tuple[int, ...], peak_bytes: int, allowance: Allowance) -> None:
        """Warn, once, of sizes that exceed the budget together with gradients from before the step."""
        if not self._told_beside:
            self._told_beside = True
            spare = allowance.spare_bytes
            together, budget = told_apart(peak_bytes + spare, allowance.limit_bytes + spare)
            logger.warning(
                "gradients are there before the step, as where several backwards add up in .grad, %s: with them "
                "it takes %s at %s, over memory_budget=%s; no plan was found that takes less; training goes on",
                format_bytes(spare),
                together,
                self._named(sizes),
                budget,
            )

    def _looked_ahead(self, sizes: tuple[int, ...], allowance: Allowance) -> list[Variant]:
        """A variant for larger sizes than all before, if `sizes` go beyond those, and variants of a refused call."""
        made, self._spare = self._spare, []
        # One such variant up to each reach: below it, it exists already and did not fit.
        if not self._reach or any(n > top for n, top in zip(sizes, self._reach)):
            earlier = self.context.store.for_sizes(sizes, self._most, ahead=True)
            # The store answers with `sizes` themselves if no earlier process looked beyond them.
            self._reach = self._curve_of_first(allowance).sizes_ahead(sizes) if earlier == sizes else earlier
            # The plan need not fit at its own sizes.
            ahead = self._smallest(self._reach, LARGER_SIZES, allowance)
            if ahead is not None:
                made.append(ahead)
        return made

    def _smallest(self, sizes: tuple[int, ...], label: str, allowance: Allowance) -> Variant | None:
        """The variant of the smallest peak at `sizes`, by one compilation, no search; `None` without a plan."""
        # The program's layout takes least.
        request = replace(self._request(sizes, allowance), take_smallest=True, free_layout=False)
        try:
            return self._compiled(lambda: self.context.search.compile_(request), sizes, label, allowance)
        except NoPlan:
            logger.debug("the planner has no plan for %s", self._named(sizes))
            return None

    def _fitting(self, sizes: tuple[int, ...], label: str, allowance: Allowance) -> Variant:
        """A variant planned for the allowance at `sizes`."""
        request = self._request(sizes, allowance)
        goal = SearchGoal(request, limit_bytes=request.budget_bytes, whole_bytes=self.context.request.budget_bytes)
        return self._compiled(lambda: self.context.search.run(goal)[0], sizes, label, allowance)

    def better_variant(
        self, uses: Sequence[Use], variants: Sequence[Variant], lost_s: float | None, allowance: Allowance
    ) -> Variant | None:
        """The variant that would have saved most so far, if that is more than its compilation takes.

        Sizes that an earlier process found worth planning for come first: their plans and kernels are cached, so they
        compile fast.  If another variant must be evicted (`lost_s`), the saving must cover that loss, too.
        """
        if torch_compat.profiler_is_running():
            return None  # what is compiled now cannot be checked as well as later
        planned = [*(variant.sizes for variant in variants), *self._refused]
        curve = self._curve_of_first(allowance)
        # What was worth it in an earlier process may fill a free place, but is no reason to evict a variant.
        missing = self.context.store.missing(planned) if lost_s is None else []
        earlier = next((one for one in missing if curve.saved_s(uses, one)), None)
        best, saved_s = (earlier, 0.0) if earlier else curve.best(uses, planned)
        cost_s = self.compile_s * (self.pays if lost_s is None else max(self.pays, 1.0))
        worth_it = earlier or saved_s - (lost_s or 0.0) >= cost_s
        # Step times, so savings, differ between ranks.
        self._searches += 1
        best = self.context.session.agreement.agree(
            Point.VARIANT, best if worth_it else None, lambda: f"{self.context.store.name} {self._searches}"
        )
        if best is None:
            # A search plans at several budgets: without the back-off, fruitless ones would come again and again.
            self.threshold_s = max(self.threshold_s * BACKOFF, cost_s)
            return None
        try:
            made = self._fitting(best, "better", allowance)
        except InfeasibleBudget as error:
            # It was only estimated to be possible, and what runs now fits.
            logger.info("no better variant: %s", error)
            self._refused[best] = copy(error)
            return None
        self.threshold_s = self._next_loss_s([*planned, best])
        return made

    def _next_loss_s(self, planned: Sequence[tuple[int, ...]]) -> float:
        """Seconds to lose to recomputation before the next search for a better variant."""
        return 0.0 if self.context.store.missing(planned) else self.pays * self.compile_s

    def _curve_of_first(self, allowance: Allowance) -> SizeCostModel:
        if self._curve is None:
            one, formula, limit = self._first.partitions[0], self._first.formula, allowance.limit_bytes
            if not allowance.is_whole:
                # The limit of held bytes may be the narrower one.  The model knows peaks only, so it is turned into
                # one: by the ratio of peak to saved bytes in the step without a budget.
                before = one.before.timeline
                limit = min(limit, allowance.held_bytes * before.peak_bytes // max(before.saved_bytes, 1))
            symbols, planner = self.context.symbols, self.options.planner
            self._curve = SizeCostModel(one, formula, symbols, self.first_sizes, limit, planner)
        return self._curve

    def _request(self, sizes: tuple[int, ...], allowance: Allowance) -> PartitionRequest:
        named = zip((symbol.name for symbol in self.context.symbols), sizes)
        # Planned for less by the margin, so that prediction and margin together stay within the limit.
        limit, layers = self.margin.limit_bytes(allowance.limit_bytes), self.layers_at(sizes)
        request = replace(self.context.request, sizes=tuple(named), layer_bytes=layers)
        return replace(request, budget_bytes=limit, between_bytes=allowance.between_bytes)

    def _compiled(
        self, compile_: Callable[[], Attempt], sizes: tuple[int, ...], label: str, allowance: Allowance
    ) -> Variant:
        """Compile, report and time a variant."""
        start = time.perf_counter()
        with self._compiling():
            attempt = compile_()
        # The latest compilation is the estimate of what the next one costs.
        self.compile_s = time.perf_counter() - start
        self.context.keep(attempt, f"a variant of the graph, planned for {self._named(sizes)} ({label})")
        return self.variant(attempt, sizes, label, allowance)

    def _named(self, sizes: tuple[int, ...]) -> str:
        """The sizes as text for messages."""
        return ", ".join(f"{input_name(symbol.source)} = {n}" for symbol, n in zip(self.context.symbols, sizes))

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        dynamo, assumptions = self.context.dynamo_context(), self.context.assumptions.recorded()
        with torch_compat.reserving_no_more(), told_if_late(), dynamo, assumptions:
            yield


def _added(attempt: Attempt) -> float:
    """Time that recomputation adds, as a fraction of the step."""
    return attempt.added_ns / max(attempt.step_ns, 1)
