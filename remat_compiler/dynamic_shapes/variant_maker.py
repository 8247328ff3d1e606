"""Variants of a graph whose sizes change: what to compile, and when.

    first        planned for the sizes of the first call; Inductor's own partition where those fit
    larger sizes no variant fits a call: a plan for up to twice its sizes, as far as that costs little more; it serves
                 every size up to there that nothing else fits
    needed       a plan for the sizes at hand, where even that does not fit
    worth it     recomputation has taken as long as a compilation: of the sizes seen, the one whose plan would have
                 saved most, if that is more than a compilation takes; where there are as many as there may be, if it
                 is more than that and what is lost without the one that is missed least, which gives way

So sizes never seen before wait for a compiler only where they go far beyond those before, and other compilations take
no longer than what they save; `RematOptions.variants` forces or forbids those.  Everything is compiled from one
captured graph, under what Dynamo knew of it.  What is worth it depends on the times of steps, so ranks may come to
different variants; the plan of each depends on nothing but what it is planned for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, replace

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt, Compile
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.peak_formula import condition_on
from remat_compiler.dynamic_shapes.allocator_watch import AllocatorWatch
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.margin import Correction
from remat_compiler.dynamic_shapes.mimose.sheltered_phase import Predict, shelter
from remat_compiler.dynamic_shapes.peak_guard import PeakGuard
from remat_compiler.dynamic_shapes.sampled_peak import SampledPeak
from remat_compiler.dynamic_shapes.variant import MemoryBySize, Use, Variant, unknown_memory
from remat_compiler.dynamic_shapes.variant_store import AHEAD, VariantStore
from remat_compiler.dynamic_shapes.variant_value import WORTH_IT, TradeOff
from remat_compiler.errors import InfeasibleBudget, RematError, UnservedSizes
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.stats import count
from remat_passes.registry import has_option

logger = logging.getLogger(__name__)

FIRST_LOSS_S = 0.001
"""Seconds to lose before a better variant is looked for again, where one is always wanted."""
HOPELESS = 0.95
"""Where even this part of the smallest peak of all variants is over the budget, no other one is tried."""
LATER = 2.0
"""Factor on the time to lose before a better variant is looked for again, when there was none."""


@dataclass(frozen=True, slots=True, eq=False)
class Workshop:
    """What it takes to compile a graph.

    Attributes:
        compile_: Compiles and checks one request.
        search: Compiles what fits a request's budget in bytes; raises `InfeasibleBudget` where nothing does.
        request: What to aim for at the sizes of the first call.
        symbols: The symbolic sizes.
        context: What Dynamo knew of the graph.
        assumptions: What compilers assume of the sizes without Dynamo.
        workspace: Measured workspaces.
        keep: Reports a variant.
        store: What earlier processes compiled.
        input_bytes: Bytes of the arguments at some positions, at given sizes.
    """

    compile_: Compile
    search: Callable[[PartitionRequest], Attempt]
    request: PartitionRequest
    symbols: tuple[torch_compat.InputSymbol, ...]
    context: Callable[[], AbstractContextManager[None]]
    assumptions: torch_compat.LaterAssumptions
    workspace: WorkspaceTable
    keep: Callable[[Attempt, str], None]
    store: VariantStore
    input_bytes: Callable[[Sequence[int], Sequence[int]], int]


class VariantMaker:
    """Makes the variants of one graph; see `dynamic_shapes.variant.Provider`.

    Args:
        workshop: What it takes.
        options: The user's options.
        first: What was compiled for the first call.
        seconds: How long that took.
    """

    def __init__(self, workshop: Workshop, options: RematOptions, first: Attempt, seconds: float) -> None:
        self.workshop = workshop
        self.options = options
        self.allowance = Allowance.whole(workshop.request.budget_bytes or 0)
        self.compile_s = seconds
        self.correction = Correction()
        self.layers_at: Predict = lambda sizes: ()
        self._most = [symbol.upper for symbol in workshop.symbols]
        self._reach: tuple[int, ...] = ()
        self._spare: list[Variant] = []
        self._refused: dict[tuple[int, ...], RematError] = {}
        self._hopeless = False
        self._first = first
        self._curve: TradeOff | None = None
        self.first_sizes = tuple(number for _, number in first.request.sizes)
        self.threshold_s = self._next_loss_s([self.first_sizes])

    def variant(self, attempt: Attempt, sizes: tuple[int, ...], label: str) -> Variant:
        """What was compiled, with its peak by size."""
        count("variants")
        known = self._known(attempt, sizes)

        def needed_bytes(at: Sequence[int]) -> int | None:
            if known is None:
                return None
            if self.allowance.is_whole:
                return known.peak_bytes(at)
            memory = known.memory(at)
            if memory is None:
                return None
            return self.allowance.needed_bytes(memory, self.workshop.input_bytes(self.allowance.passed, at))

        memory: MemoryBySize = unknown_memory if known is None else known.memory
        correction = replace(self.correction)
        made = Variant(attempt.compiled, needed_bytes, _added(attempt), sizes, label, memory, correction)
        if label == AHEAD or made.fits(sizes, self.limit_bytes):
            self.workshop.store.add(label, sizes, free=not made.added)
        return made

    @property
    def limit_bytes(self) -> int:
        """Most bytes that the graph may take."""
        return self.allowance.limit_bytes

    def allow(self, allowance: Allowance, variants: Sequence[Variant]) -> Variant | None:
        """See `dynamic_shapes.variant.Provider`."""
        self.allowance = allowance
        self._refused.clear()
        self._hopeless, self._curve = False, None
        added = _added(self._first)
        if len(variants) > 1 or not added:
            return None
        least = self._curve_of_first().added_at(self.first_sizes)
        if least and least > added - WORTH_IT:
            return None
        try:
            return self._fitting(self.first_sizes, "first")
        except InfeasibleBudget as error:
            logger.info("no better variant for the first sizes: %s", error)
            return None

    def _known(self, attempt: Attempt, sizes: tuple[int, ...]) -> PeakGuard | SampledPeak | None:
        """Its formula where there is one and the options do not say otherwise; else learnt from dry runs."""
        names = [symbol.name for symbol in self.workshop.symbols]
        conditions = self.workshop.assumptions.conditions(names)
        if conditions is None or attempt.check_at is None:
            logger.warning("nothing is known of the peak of a variant, which is not used: its sizes are restricted")
            return None
        if attempt.form is not None and self.options.estimator == "symbolic":
            form = replace(attempt.form, conditions=(*attempt.form.conditions, *conditions))
            return PeakGuard(form, self.workshop.workspace, sizes)
        check_at, holds = attempt.check_at, condition_on(names, conditions)
        return SampledPeak(lambda at: check_at(dict(zip(names, at))), lambda: self.limit_bytes, holds=holds)

    def provide(self, sizes: tuple[int, ...], variants: Sequence[Variant]) -> Sequence[Variant]:
        """What to run `sizes` by, last: a plan for larger ones, where that is new and fits, else a plan for them.

        Where nothing fits and the options say to take the smallest peak, so it is for all sizes that take more.

        Raises:
            InfeasibleBudget: Nothing fits, and the options do not say to take the smallest peak.
            UnservedSizes: What was compiled may not run at them.
        """
        peaks = [(peak, i) for i, variant in enumerate(variants) if (peak := variant.peak_bytes(sizes)) is not None]
        least, i = min(peaks, default=(0, 0))
        if self._hopeless and least * HOPELESS > self.limit_bytes:
            return [variants[i]]
        if sizes in self._refused:
            raise copy(self._refused[sizes])
        made = self._looked_ahead(sizes)
        fitting = [variant for variant in made if variant.fits(sizes, self.limit_bytes)]
        if fitting:
            return [*(variant for variant in made if variant is not fitting[0]), fitting[0]]
        try:
            needed = self._fitting(self.workshop.store.for_sizes(sizes, self._most, ahead=False), "needed")
            peak = needed.peak_bytes(sizes)
            if peak is None:
                raise UnservedSizes(self._named(sizes))
        except (InfeasibleBudget, UnservedSizes) as error:
            # A copy has no traceback, whose frames would hold on to the step that failed.
            self._spare, self._refused[sizes] = made, copy(error)
            raise
        self._hopeless |= peak > self.limit_bytes
        return [*made, needed]

    def _looked_ahead(self, sizes: tuple[int, ...]) -> list[Variant]:
        """The variant for larger sizes, once up to where it reaches, and what was made for a call that was refused."""
        made, self._spare = self._spare, []
        if not self._reach or any(n > top for n, top in zip(sizes, self._reach)):
            earlier = self.workshop.store.for_sizes(sizes, self._most, ahead=True)
            self._reach = self._curve_of_first().beyond(sizes) if earlier == sizes else earlier
            request = replace(self._request(self._reach), take_smallest=True, free_layout=False)
            try:
                made.append(self._compiled(lambda: self.workshop.compile_(request), self._reach, AHEAD))
            except NoPlan:
                logger.debug("the planner has no plan for %s", self._named(self._reach))
        return made

    def _fitting(self, sizes: tuple[int, ...], label: str) -> Variant:
        """A variant planned for the budget at `sizes`."""
        return self._compiled(lambda: self.workshop.search(self._request(sizes)), sizes, label)

    def improve(self, uses: Sequence[Use], variants: Sequence[Variant], lost_s: float | None) -> Variant | None:
        """The variant that would have saved most so far, where that is more than its compilation takes.

        What an earlier process found to be worth it costs little to compile again, and comes first.  Where another
        variant has to give way, what is lost by that is to be saved, too, and the compilation in any case.
        """
        if torch_compat.profiler_is_running():
            return None  # what is compiled now cannot be checked as well as later
        planned = [*(variant.sizes for variant in variants), *self._refused]
        curve = self._curve_of_first()
        missing = self.workshop.store.missing(planned) if lost_s is None else []
        earlier = next((one for one in missing if curve.saved_s(uses, one)), None)
        best, saved_s = (earlier, 0.0) if earlier else curve.best(uses, planned)
        always = self.options.variants == "always" and lost_s is None
        if best is None or not (earlier or always or saved_s - (lost_s or 0.0) >= self.compile_s):
            self.threshold_s = max(self.threshold_s * LATER, FIRST_LOSS_S if always else self.compile_s)
            return None
        try:
            made = self._fitting(best, "worth it")
        except InfeasibleBudget as error:
            # It was only estimated to be possible, and what runs now fits.
            logger.info("no better variant: %s", error)
            self._refused[best] = copy(error)
            return None
        self.threshold_s = self._next_loss_s([*planned, best])
        return made

    def _next_loss_s(self, planned: Sequence[tuple[int, ...]]) -> float:
        """Seconds to lose to recomputation before the next variant is looked for."""
        if self.options.variants == "never":
            return float("inf")
        at_once = self.options.variants == "always" or self.workshop.store.missing(planned)
        return 0.0 if at_once else self.compile_s

    def _curve_of_first(self) -> TradeOff:
        if self._curve is None:
            one, form, limit = self._first.partitions[0], self._first.form, self.limit_bytes
            if not self.allowance.is_whole:
                # What is held may be the narrower limit: of the step without a budget it is this part of the peak.
                before = one.before.timeline
                limit = min(limit, self.allowance.held_bytes * before.peak_bytes // max(before.saved_bytes, 1))
            self._curve = TradeOff(one, form, self.workshop.symbols, self.first_sizes, limit, self.options.planner)
        return self._curve

    def _request(self, sizes: tuple[int, ...]) -> PartitionRequest:
        named = zip((symbol.name for symbol in self.workshop.symbols), sizes)
        limit, layers = self.correction.limit_bytes(self.limit_bytes), self.layers_at(sizes)
        request = replace(self.workshop.request, sizes=tuple(named), layer_bytes=layers)
        return replace(request, budget_bytes=limit, between_bytes=self.allowance.between_bytes)

    def _compiled(self, compile_: Callable[[], Attempt], sizes: tuple[int, ...], label: str) -> Variant:
        """Compile, report and time a variant."""
        start = time.perf_counter()
        with self._compiling():
            attempt = compile_()
        self.compile_s = time.perf_counter() - start
        self.workshop.keep(attempt, f"a variant of the graph, planned for {self._named(sizes)} ({label})")
        return self.variant(attempt, sizes, label)

    def _named(self, sizes: tuple[int, ...]) -> str:
        """Sizes as people are shown them."""
        return ", ".join(f"{symbol.source} = {n}" for symbol, n in zip(self.workshop.symbols, sizes))

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        with self.workshop.context(), self.workshop.assumptions.recorded():
            yield


def dispatched(
    workshop: Workshop, options: RematOptions, first: Attempt, seconds: float, allowance: Allowance | None = None
) -> Dispatch:
    """What runs a graph of changing sizes from now on.

    Args:
        workshop: What it takes to compile it.
        options: The user's options.
        first: What was compiled for the first call.
        seconds: How long that took.
        allowance: What it may take of the budget until the step is known; `None` for all.
    """
    maker = VariantMaker(workshop, options, first, seconds)
    maker.allowance = allowance or maker.allowance
    variant = maker.variant(first, maker.first_sizes, "first")
    positions = [symbol.position for symbol in workshop.symbols]
    made = Dispatch(positions, maker.limit_bytes, variant, maker, options.max_variants)
    made.allowance = maker.allowance
    inputs = first.partitions[0].graphs.forward.graph.find_nodes(op="placeholder")
    allocator = torch_compat.device_allocator(node.meta.get("val") for node in inputs)
    if allocator is not None:
        made.watchers = (AllocatorWatch(made, allocator, maker.correction),)
    if options.estimator == "quadratic":
        layers_at = shelter(made, first, workshop.workspace)
        if has_option(options.planner, "layer_bytes"):
            maker.layers_at = layers_at
    return made


def _added(attempt: Attempt) -> float:
    """Time that recomputation adds, as a fraction of the step."""
    return attempt.added_ns / max(attempt.step_ns, 1)
