"""The peak by size learnt from dry runs at a few sizes, where the step cannot run on symbolic ones.

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.3:
a quadratic fitted to about ten sizes as they come.  Deviation: not the peak is fitted, which bends where another
operator takes its place, but the bytes alive at every moment of the step; the peak is their maximum.  The samples are
dry runs, which are exact, so that no step has to be measured.  And since what an operator takes inside is no polynomial
(a convolution's algorithm is chosen by size; seen to be 4 % too low), a prediction near the budget is checked by a dry
run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dynamic_shapes.mimose.polynomial import PolynomialEstimator, Sample
from remat_compiler.simulate.step_peak import GraphMemory

DOUBT = 0.1
"""A prediction below the budget by less than this part of it is checked."""


class SampledPeak:
    """The peak of a compiled step at any sizes: exact at the first sizes, outside of their range and near the budget.

    Args:
        check_at: The dry run of the step at given sizes.
        limit_bytes: The budget as it is now.
        most_samples: Sizes that are dry-run before anything is predicted.
        holds: Whether anything is known of given sizes.
    """

    def __init__(
        self,
        check_at: Callable[[Sequence[int]], DryRun],
        limit_bytes: Callable[[], int],
        most_samples: int = 10,
        holds: Callable[..., bool] = lambda *_: True,
    ) -> None:
        self.checks = 0
        self._holds = holds
        self._check_at = check_at
        self._limit_bytes = limit_bytes
        self._estimator = PolynomialEstimator(most_samples=most_samples)
        self._known: dict[tuple[int, ...], int | None] = {}
        self._memories: dict[tuple[int, ...], GraphMemory | None] = {}

    def peak_bytes(self, sizes: Sequence[int]) -> int | None:
        """The peak at these sizes, at least about; `None` where nothing is known of them."""
        key = tuple(sizes)
        if not self._holds(*key):
            return None
        if key in self._known:
            return self._known[key]
        return self._predicted(key) if self._estimator.full else self._checked(key)

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak at these sizes and what is alive between and after, which is not fitted: a dry run tells."""
        key = tuple(sizes)
        if not self._holds(*key):
            return None
        if key not in self._memories:
            self.checks += 1
            self._memories[key] = self._check_at(key).memory
        return self._memories[key]

    def _predicted(self, sizes: tuple[int, ...]) -> int | None:
        """From the fit, with its margin at every moment; a dry run outside of what was seen."""
        fit = self._estimator.fitted()
        estimate = fit.predict(sizes)
        if estimate.extrapolated:
            return self._checked(sizes)
        peak = max(map(sum, zip(estimate.block_bytes, fit.block_margins)))
        limit = self._limit_bytes()
        near = (1.0 - DOUBT) * limit < peak <= limit
        return self._checked(sizes) if near else peak

    def _checked(self, sizes: tuple[int, ...]) -> int | None:
        """From a dry run, which is kept as a sample."""
        self.checks += 1
        found = self._check_at(sizes)
        self._known[sizes] = None if found.unknown else found.peak_bytes
        if found.unknown:
            return None
        heights = tuple(sample.live_bytes + sample.workspace_bytes for sample in found.timeline)
        known = self._estimator.samples
        if heights and min(sizes) > 0 and (not known or len(known[0].block_bytes) == len(heights)):
            self._estimator.add(Sample(sizes, heights))
        return found.peak_bytes
