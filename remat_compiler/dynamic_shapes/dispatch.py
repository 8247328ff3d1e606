"""Which compiled variant of a graph runs a call: the cheapest one that fits at the call's sizes.

    call ─► sizes ─► seen before? ─► its variant
                        │ no
                        ▼
             the cheapest variant whose guard says that it fits ─► none? ─► `provide` makes one

What recomputation costs is counted on the way: a variant that adds nothing costs nothing, the others are charged the
part of the time between two calls that they add.  When that reaches `Provider.threshold_s`, the provider may make a
better variant.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.variant import Provider, Use, Variant, Watcher
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.simulate.step_peak import GraphMemory
from remat_compiler.stats import count

logger = logging.getLogger(__name__)

MOST_SIZES = 4_096
"""Sizes whose variant is remembered; beyond, all are forgotten and decided again."""


class Dispatch:
    """Runs each call by the cheapest variant that fits.

    Args:
        positions: Positions of the arguments that are the sizes.
        limit_bytes: The budget.
        first: The variant that exists.
        provider: Makes more.
        max_variants: How many there may be; the one that is missed least gives way.

    Attributes:
        watchers: Who looks at calls.
        sheltered: Whether the variant of the smallest peak runs each call, as long as samples are collected.
        latest: How the latest call is run.
    """

    def __init__(
        self, positions: Sequence[int], limit_bytes: int, first: Variant, provider: Provider, max_variants: int
    ) -> None:
        self.allowance = Allowance.whole(limit_bytes)
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
        self._outgrown: dict[Any, Variant] = {}
        self._lost_s = 0.0
        self._last: tuple[Use | None, float] = (None, 0.0)
        self.latest: Use | None = None
        # Variants are compiled under it, and what shares budgets holds Dynamo's lock when it comes here.
        self._lock = torch_compat.compile_lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the forward."""
        variant = self.chosen(arguments)
        return self._watched(arguments) if self.watchers else variant.compiled(*arguments)

    def _watched(self, arguments: Sequence[Any]) -> Any:
        """Run a call whose variant is chosen, with others looking on, who may choose anew."""
        watchers, key = self.watchers, self._key_of(arguments)
        use = self._uses.get(key) or self._decide(key)
        for watcher in watchers:
            watcher.before(use, arguments)
        # Where sizes lost their variant meanwhile.
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
        """The variant for calls at `sizes`, made ahead of them where there is none."""
        return self._use_of(sizes[0] if self._one else sizes).variant

    @property
    def limit_bytes(self) -> int:
        """Most bytes that the graph may take."""
        return self.allowance.limit_bytes

    @property
    def memory_now(self) -> GraphMemory | None:
        """The memory of the latest call; `None` where nothing is known of it."""
        return None if self.latest is None else self.latest.memory

    def memory_at(self, arguments: Sequence[Any]) -> GraphMemory | None:
        """The memory of a call with these arguments."""
        use = self._use_of(self._key_of(arguments))
        return use.variant.memory(use.sizes)

    def allow(self, allowance: Allowance) -> None:
        """Keep to `allowance` from now on; sizes that nothing fits any more are decided when they come again."""
        with self._lock:
            self.allowance = allowance
            better = self.provider.allow(allowance, self.variants)
            for key, use in list(self._uses.items()):
                best = self._preferred(use.sizes)
                if best is None:
                    del self._uses[key]
                else:
                    use.run_by(best)
            if better is not None:
                self._add(better)

    def _use_of(self, key: Any) -> Use:
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
        """Count what recomputation took of one step; where that is much, look for a better variant."""
        if self.sheltered:
            return
        use.time_step(seconds)
        self._lost_s += use.added_s
        if self._lost_s < self.provider.threshold_s:
            return
        with self._lock:
            self._lost_s = 0.0
            lost_s = None if len(self.variants) < self.max_variants else min(self._lost_without(self.variants).values())
            better = self.provider.improve(self.uses, self.variants, lost_s)
            if better is not None:
                self._add(better)

    def _lost_without(self, variants: Sequence[Variant]) -> dict[Variant, float]:
        """Seconds that the calls so far would have taken more without each of the variants that there are.

        Infinite for those that some calls cannot do without: where nothing else fits, or where nothing is recomputed
        now, and for the one of the smallest peak at the largest sizes, which other large sizes will need.
        """
        lost = dict.fromkeys(self.variants, 0.0)
        for use in self.uses:
            if use.variant in lost:
                rest = [v.added for v in variants if v is not use.variant and v.fits(use.sizes, self.limit_bytes)]
                added = min(rest, default=None)
                if added is None or not use.variant.added:
                    lost[use.variant] = float("inf")
                else:
                    lost[use.variant] += use.calls * use.added_s * (added / use.variant.added - 1.0)
        largest = max((use.sizes for use in self.uses), key=prod, default=self.variants[0].sizes)
        peaks = {v: peak for v in self.variants if (peak := v.peak_bytes(largest)) is not None}
        if peaks:
            lost[min(peaks, key=peaks.__getitem__)] = float("inf")
        return lost

    def _decide(self, key: Any) -> Use:
        """Choose for sizes not seen before."""
        start = time.perf_counter()
        sizes = (key,) if self._one else tuple(key)
        if self.before_new_sizes is not None:
            self.before_new_sizes(sizes)
        with self._lock:
            variant = self._preferred(sizes)
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
            if len(self._uses) >= MOST_SIZES:
                self._uses.clear()
            return self._uses.setdefault(key, Use(sizes, variant))

    def _provided(self, key: Any, sizes: tuple[int, ...]) -> Sequence[Variant]:
        """Variants for sizes that nothing fits; what ran them before they were measured goes on if there are none."""
        try:
            return self.provider.provide(sizes, self.variants)
        except InfeasibleBudget as error:
            if key not in self._outgrown:
                raise
            logger.warning("sizes %s go on beyond the budget, for no plan fits by what was measured: %s", sizes, error)
            return [self._outgrown.pop(key)]

    def _preferred(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant to run these sizes by, of those that fit."""
        return self.smallest(sizes) if self.sheltered else self.cheapest(sizes)

    def smallest(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant of the smallest peak, where that fits: the conservative one."""
        peaks = {v: peak for v in self.variants if (peak := v.peak_bytes(sizes)) is not None}
        found = min(peaks, key=lambda v: (peaks[v], v.added), default=None)
        return found if found is not None and peaks[found] <= self.limit_bytes else None

    def cheapest(self, sizes: tuple[int, ...]) -> Variant | None:
        """The variant that adds least of those that fit."""
        fitting = [variant for variant in self.variants if variant.fits(sizes, self.limit_bytes)]
        return min(fitting, key=lambda variant: variant.added, default=None)

    def _add(self, variant: Variant) -> None:
        """Take in a variant and choose anew for all sizes."""
        if len(self.variants) >= self.max_variants:
            lost_s = self._lost_without([*self.variants, variant])
            calls = dict.fromkeys(self.variants, 0)
            for use in self.uses:
                calls[use.variant] = calls.get(use.variant, 0) + use.calls
            self.variants.remove(min(self.variants, key=lambda v: (lost_s[v], calls[v])))
        self.variants.append(variant)
        self.made += 1
        self._choose_anew()

    def _choose_anew(self) -> None:
        """Choose again for all sizes; those that nothing fits stay as they are."""
        for use in self.uses:
            best = self._preferred(use.sizes)
            if best is not None:
                use.run_by(best)

    def leave_shelter(self) -> None:
        """From now on the cheapest variant that fits runs each call."""
        with self._lock:
            self.sheltered = False
            self._choose_anew()

    def reconsider(self) -> None:
        """Guards were corrected: choose again for all sizes, and at its next call for each that nothing fits now."""
        with self._lock:
            self._choose_anew()
            for key, use in tuple(self._uses.items()):
                if not use.variant.fits(use.sizes, self.limit_bytes):
                    self._outgrown[key] = self._uses.pop(key).variant
