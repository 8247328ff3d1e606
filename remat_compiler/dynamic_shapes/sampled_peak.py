"""The peak by size learnt from dry runs at a few sizes, if the step cannot run on symbolic sizes.

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.3:
a quadratic fitted to about ten sizes as they come.  Deviations: the fit is not of the peak, which bends where another
moment of the step becomes the highest, but of the bytes alive at every moment; the peak is their maximum.  The samples
are dry runs, which are exact, so that no step has to be measured.  And since operator workspace is no polynomial (a
convolution's algorithm is chosen by size; predictions were seen to be 4 % too low), a prediction near the budget is
checked by a dry run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dynamic_shapes.mimose.polynomial import LayerSample, PolynomialEstimator
from remat_compiler.step_model.graph_memory import GraphMemory

DOUBT = 0.1
"""A prediction that is below the budget by less than this part of it is checked."""


class SampledPeak:
    """The peak of a compiled step at any sizes: exact at the first sizes, outside their range, and near the budget.

    Args:
        check_at: The dry run of the step at given sizes.
        most_samples: Number of sizes that are dry-run before anything is predicted.
        holds: Whether the compiled code may run at given sizes.
    """

    def __init__(
        self,
        check_at: Callable[[Sequence[int]], DryRun],
        most_samples: int = 10,
        holds: Callable[..., bool] = lambda *_: True,
    ) -> None:
        self.checks = 0
        self._holds = holds
        self._check_at = check_at
        self._estimator = PolynomialEstimator(most_samples=most_samples)
        self._known: dict[tuple[int, ...], int | None] = {}
        self._memories: dict[tuple[int, ...], GraphMemory | None] = {}

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int) -> int | None:
        """The approximate peak at these sizes, exact near `limit_bytes`; `None` if it is not known."""
        key = tuple(sizes)
        if not self._holds(*key):
            return None
        if key in self._known:
            return self._known[key]
        return self._predicted(key, limit_bytes) if self._estimator.full else self._checked(key)

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak at these sizes, and the bytes alive between and after the passes; always from a dry run."""
        key = tuple(sizes)
        if not self._holds(*key):
            return None
        # Held and left bytes are not moments of the fitted timeline.
        if key not in self._memories:
            self.checks += 1
            self._memories[key] = self._check_at(key).memory
        return self._memories[key]

    def _predicted(self, sizes: tuple[int, ...], limit_bytes: int) -> int | None:
        """The peak by the fit, with its margin at every moment; by a dry run outside the range of the samples."""
        fit = self._estimator.fitted()
        estimate = fit.predict(sizes)
        if estimate.extrapolated:
            return self._checked(sizes)
        # A margin for each moment: one that is fitted badly, far below the peak, does not count against the peak.
        peak = max(map(sum, zip(estimate.block_bytes, fit.block_margins)))
        # Just below the limit an error could let something run that does not fit; above, it is at worst too careful.
        near = (1.0 - DOUBT) * limit_bytes < peak <= limit_bytes
        return self._checked(sizes) if near else peak

    def _checked(self, sizes: tuple[int, ...]) -> int | None:
        """The peak by a dry run, which becomes a sample of the fit."""
        self.checks += 1
        found = self._check_at(sizes)
        self._known[sizes] = None if found.unknown else found.peak_bytes
        if found.unknown:
            return None
        heights = tuple(sample.live_bytes + sample.workspace_bytes for sample in found.timeline)
        known = self._estimator.samples
        # Moments are fitted by position: a step that took another course, with more or fewer, cannot be a sample.
        if heights and min(sizes) > 0 and (not known or len(known[0].block_bytes) == len(heights)):
            self._estimator.add(LayerSample(sizes, heights))
        return found.peak_bytes
