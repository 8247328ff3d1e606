"""Which compiled variant of a graph runs a call: the cheapest one that fits at the call's sizes.

    call ─► sizes ─► seen before? ─► its variant
                        │ no
                        ▼
             the cheapest variant whose guard says that it fits ─► none? ─► the provider makes one

The cost of recomputation is summed up on the way: each call is charged the part of the time to the next call that its
variant adds.  When the sum reaches `Provider.threshold_s`, the provider may make a better variant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.variant import Provider, Use, Variant, Watcher
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.log import logger_of
from remat_compiler.stats import count
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory

logger = logger_of(__name__)

MOST_SIZES = 4_096
"""Sizes whose variant is remembered; when there are more, all are forgotten and decided again."""


class Dispatch:
    """Runs each call by the cheapest variant that fits.

    Args:
        positions: Positions of the arguments that are the sizes.
        allowance: The graph's limits under the budget; they are kept here and nowhere else.
        first: The variant for the first call.
        provider: Makes further variants.
        max_variants: Largest number of variants; beyond it, the one whose loss costs least is evicted.

    Attributes:
        watchers: Are told of each call.
        sheltered: Whether the variant of the smallest peak runs each call, while samples are collected.
        latest: The use of the latest call.
    """

    def __init__(
        self, positions: Sequence[int], allowance: Allowance, first: Variant, provider: Provider, max_variants: int
    ) -> None:
        self.allowance = allowance
        self.variants = [first]
        self.provider = provider
        self.max_variants = max_variants
        self.watchers: tuple[Watcher, ...] = ()
        self.sheltered = False
        self.made = 1
        self.decisions = 0
        self.decision_s = 0.0
        self._key_of = itemgetter(*positions)
        self._one = len(positions) == 1
        self.before_new_sizes: Callable[[tuple[int, ...]], None] | None = None
        self._uses: dict[Any, Use] = {}
        self._over_after_correction: dict[Any, Variant] = {}
        self._lost_s = 0.0
        self._last: tuple[Use | None, float] = (None, 0.0)
        self.latest: Use | None = None
        # Dynamo's own lock: variants are compiled under it, and a change of shared budgets holds it when it calls
        # `allow`; a second lock could be taken in the other order, and both threads would wait for ever.
        self._lock = torch_compat.compile_lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        variant = self.chosen(arguments)
        return self._watched(arguments) if self.watchers else variant.compiled(*arguments)

    def _watched(self, arguments: Sequence[Any]) -> Any:
        """Run a call with watchers, which may have all sizes decided again before it runs."""
        watchers, key = self.watchers, self._key_of(arguments)
        use = self._uses.get(key) or self._decide(key)
        for watcher in watchers:
            watcher.before(use, arguments)
        # A watcher may have corrected the guards, so that the sizes have another variant, or none.
        use = self._uses.get(key) or self._decide(key)
        outputs = use.variant.compiled(*arguments)
        for watcher in watchers:
            watcher.after(use, outputs)
        return outputs

    def chosen(self, arguments: Sequence[Any]) -> Variant:
        """The variant for a call with these arguments."""
        use = self._use_of(self._key_of(arguments))
        use.calls += 1
        self.latest = use
        self._last = (use, time.perf_counter())
        return use.variant

    def prepare(self, sizes: tuple[int, ...]) -> Variant:
        """The variant for calls at `sizes`; it is compiled before the first of them if none fits."""
        return self._use_of(sizes[0] if self._one else sizes).variant

    @property
    def limit_bytes(self) -> int:
        """Largest peak that the graph may have."""
        return self.allowance.limit_bytes

    @property
    def memory_now(self) -> GraphMemory | None:
        """The memory of the latest call; `None` if it is not known."""
        return None if self.latest is None else self.latest.memory

    def memory_at(self, arguments: Sequence[Any]) -> GraphMemory | None:
        """The memory of a call with these arguments."""
        use = self._use_of(self._key_of(arguments))
        return use.variant.memory(use.sizes)

    def allow(self, allowance: Allowance) -> None:
        """Keep to `allowance` from now on; sizes that no variant fits any more are decided when they come again."""
        with self._lock:
            before, self.allowance = self.allowance, allowance
            better = self.provider.after_change(self.variants, before, allowance)
            for key, use in list(self._uses.items()):
                best = self._preferred(use.sizes)
                if best is None:
                    # Not compiled for here: the sizes may never come again.
                    del self._uses[key]
                else:
                    self._run_by(use, best)
            if better is not None:
                self._add(better)

    def _use_of(self, key: Any) -> Use:
        # A step ends when the next call begins; calls without recomputation are not timed, which keeps them cheap.
        before, then = self._last
        if before is not None and before.variant.added:
            self._last = (None, 0.0)
            self._charge(before, time.perf_counter() - then)
        use = self._uses.get(key)
        return self._decide(key) if use is None else use

    @property
    def uses(self) -> tuple[Use, ...]:
        """The sizes seen, with what runs them."""
        return tuple(self._uses.values())

    def _charge(self, use: Use, seconds: float) -> None:
        """Add up the time that recomputation took of one step; once that is much, look for a better variant."""
        if self.sheltered:
            return  # these steps are slow on purpose, and take the time of collecting
        use.time_step(seconds)
        self._lost_s += use.added_s
        if self._lost_s < self.provider.threshold_s:
            return
        with self._lock:
            self._lost_s = 0.0
            # With a place free nothing is lost by a better variant; else that of the variant to be evicted.
            lost_s = None if len(self.variants) < self.max_variants else min(self._lost_without(self.variants).values())
            better = self.provider.better_variant(self.uses, self.variants, lost_s, self.allowance)
            if better is not None:
                self._add(better)

    def _lost_without(self, variants: Sequence[Variant]) -> dict[Variant, float]:
        """For each variant, the additional seconds that the calls so far would have taken without it.

        Infinite if no other variant fits some of its calls, or if it recomputes nothing; also for the variant with the
        smallest peak at the largest sizes, which other large sizes will need.

        Args:
            variants: The variants that could take over its calls.
        """
        lost = dict.fromkeys(self.variants, 0.0)
        for use in self.uses:
            if use.variant in lost:
                rest = [v.added for v in variants if v is not use.variant and v.fits(use.sizes, self.allowance)]
                added = min(rest, default=None)
                if added is None or not use.variant.added:
                    lost[use.variant] = float("inf")
                else:
                    # The time of its recomputation would grow in proportion to what the variants add.
                    lost[use.variant] += use.calls * use.added_s * (added / use.variant.added - 1.0)
        largest = max((use.sizes for use in self.uses), key=prod, default=self.variants[0].sizes)
        peaks = {v: peak for v in self.variants if (peak := v.needed_bytes(largest, self.allowance)) is not None}
        if peaks:
            lost[min(peaks, key=peaks.__getitem__)] = float("inf")
        return lost

    def _decide(self, key: Any) -> Use:
        """Choose for sizes not seen before."""
        start = time.perf_counter()
        # `itemgetter` gives no tuple for one position.
        sizes = (key,) if self._one else tuple(key)
        # Before anything is chosen: it may change the allowance.
        if self.before_new_sizes is not None:
            self.before_new_sizes(sizes)
        with self._lock:
            variant = self._preferred(sizes)
            # Only decisions without a compilation are timed.
            if variant is None:
                for made in self._provided(key, sizes):
                    variant = made
                    if made not in self.variants:
                        self._add(made)
            else:
                seconds = time.perf_counter() - start
                self.decisions += 1
                self.decision_s += seconds
                count("decisions")
                count("deciding_s", seconds)
            assert variant is not None
            variant.prepare(sizes, self.allowance)
            # Another thread may have decided these sizes while this one waited for the lock: its use is taken.
            if len(self._uses) >= MOST_SIZES:
                self._uses.clear()
            return self._uses.setdefault(key, Use(sizes, variant))

    def _provided(self, key: Any, sizes: tuple[int, ...]) -> Sequence[Variant]:
        """New variants for sizes that none fits; without any, the one that ran before the guards were corrected."""
        try:
            return self.provider.variants_for(sizes, self.variants, self.allowance)
        except InfeasibleBudget as error:
            # Sizes that ran already are not refused in the middle of training because of a measured excess.
            if key not in self._over_after_correction:
                raise
            logger.warning("sizes %s go on beyond the budget, for no plan fits by what was measured: %s", sizes, error)
            return [self._over_after_correction.pop(key)]

    def _preferred(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant to run these sizes, of those that fit; `None` if none does."""
        return self.smallest(sizes) if self.sheltered else self.cheapest(sizes)

    def smallest(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant of the smallest peak, the conservative choice; `None` if it does not fit."""
        peaks = {v: peak for v in self.variants if (peak := v.needed_bytes(sizes, self.allowance)) is not None}
        found = min(peaks, key=lambda v: (peaks[v], v.added), default=None)
        return found if found is not None and peaks[found] <= self.limit_bytes else None

    def cheapest(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant that adds the least time of those that fit; `None` if none fits."""
        fitting = [variant for variant in self.variants if variant.fits(sizes, self.allowance)]
        return min(fitting, key=lambda variant: variant.added, default=None)

    def _add(self, variant: Variant) -> None:
        """Take in a variant, and choose again for all sizes."""
        if len(self.variants) >= self.max_variants:
            # The new variant may take over the calls of the evicted one, but is itself never evicted.
            lost_s = self._lost_without([*self.variants, variant])
            calls = dict.fromkeys(self.variants, 0)
            for use in self.uses:
                calls[use.variant] = calls.get(use.variant, 0) + use.calls
            # If every variant is needed, so that all losses are infinite, the one with the fewest calls goes.
            self.variants.remove(min(self.variants, key=lambda v: (lost_s[v], calls[v])))
        self.variants.append(variant)
        self.made += 1
        self._choose_anew()

    def _choose_anew(self) -> None:
        """Choose again for all sizes; those that no variant fits keep the one that they have."""
        for use in self.uses:
            best = self._preferred(use.sizes)
            if best is not None:
                self._run_by(use, best)

    def _run_by(self, use: Use, variant: Variant) -> None:
        """Run the sizes of `use` by `variant` from now on."""
        if variant is not use.variant:
            variant.prepare(use.sizes, self.allowance)
        use.run_by(variant)

    def end_sheltered_phase(self) -> None:
        """End the phase in which the smallest variant runs each call; the cheapest that fits does from now on."""
        with self._lock:
            self.sheltered = False
            self._choose_anew()

    def recheck_guards(self) -> None:
        """Choose again for all sizes after guards were corrected; sizes that none fits wait for their next call."""
        with self._lock:
            self._choose_anew()
            # What ran them is remembered: it goes on if no plan fits by the corrected guards.
            for key, use in tuple(self._uses.items()):
                if not use.variant.fits(use.sizes, self.allowance):
                    self._over_after_correction[key] = self._uses.pop(key).variant
