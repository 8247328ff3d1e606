"""Sheltered execution: the bytes that the layers of a graph save, and their times, measured at the first sizes.

    sheltered     call ─► sizes new? ─► forward run once more, layer by layer ─► sample      step by the smallest plan
    responsive    call                                                                       step by the cheapest plan

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, sections
4.1, 4.2 and 5 (Figure 12 has the filter).  About ten sizes are collected, and no more; from these samples the bytes of
the layers at other sizes are predicted (`polynomial`).

Deviations: a run that would exceed the budget is left out, which is known beforehand; and the phase ends after
`MOST_CALLS` calls even if fewer sizes came.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from statistics import median
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.mimose.layered_forward import LayeredForward, Measured, Meter
from remat_compiler.dynamic_shapes.mimose.polynomial import LayerSample, PolynomialEstimator
from remat_compiler.log import logger_of
from remat_compiler.stats import count, stats
from remat_compiler.units import format_bytes

logger = logger_of(__name__)

PeakBySize = Callable[[Sequence[int]], "int | None"]
"""The peak at given sizes in bytes; `None` if it is not known."""
MOST_CALLS = 30
"""Calls after which the phase ends; the paper's takes 10 to 30."""
LEAST_SAMPLES = 3
"""Least number of sampled sizes to predict layers from: a parabola has three coefficients."""


class Dropped(Enum):
    """Why a sample is thrown away."""

    FIRST = "first run, which warms up"
    COMPILED = "something was compiled in the step"
    CHECKPOINTED = "layer that the user has made again"
    OVER_BUDGET = "beyond the budget"
    FAILED = "failed"


class Collector:
    """Collects samples at the first sizes of one graph.

    Args:
        forward: The graph's forward.
        peak_bytes: Peak of a run of it at given sizes.
        limit_bytes: Gives the present budget.
        take: Maps the arguments of a call of the graph to those of the forward.
        meter: Measures bytes and times.
        most_samples: Number of sizes to collect.
        most_calls: Calls after which the phase ends.
    """

    def __init__(
        self,
        forward: LayeredForward,
        peak_bytes: PeakBySize,
        limit_bytes: Callable[[], int],
        take: Callable[[Sequence[Any]], list[Any]],
        meter: Meter,
        most_samples: int = 10,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self.estimator = PolynomialEstimator(most_samples=most_samples)
        self.dropped: Counter[Dropped] = Counter()
        self.seconds = 0.0
        self.calls = 0
        self.active = True
        self._forward: LayeredForward | None = forward
        self._blocks = forward.blocks
        self._kept = [k for k, block in enumerate(forward.blocks) if not block.checkpointed]
        self._peak_bytes = peak_bytes
        self._limit_bytes = limit_bytes
        self._take = take
        self._meter = meter
        self._most_calls = most_calls
        self._compilations = -1  # no count: before the first call everything was compiled
        self._left_at = 0.0
        self._steps_s: list[float] = []

    def before_step(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> bool:
        """Collect at the sizes of a call unless they are known; whether the phase goes on."""
        start = time.perf_counter()
        compilations = stats().compilations
        compiled = compilations != self._compilations
        # Only plain steps are compared with the time of collecting, see `_report`.
        if self.calls and not compiled:
            self._steps_s.append(start - self._left_at)
        self.calls += 1
        known = any(sample.sizes == sizes for sample in self.estimator.samples)
        # Samples are of sizes of at least 1.
        if self._kept and not known and min(sizes) >= 1:
            self._collect(sizes, arguments, compiled=compiled)
        self._compilations = stats().compilations
        if not self._kept or self.estimator.full or self.calls >= self._most_calls:
            self.stop()
        self._left_at = time.perf_counter()
        self.seconds += self._left_at - start
        count("collecting_s", self._left_at - start)
        if not self.active:
            self._report()
        return self.active

    def stop(self) -> None:
        """End the phase, and release the forward with its graph."""
        self.active = False
        self._forward = None
        self._take = _nothing_to_take  # the former one refers to the compiled graphs

    def layer_bytes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Predicted bytes of each layer at given sizes; empty if too little was collected to tell all of them."""
        # A checkpointed layer that saves something has no samples.
        whole = all(not block.checkpointed or not block.saved for block in self._blocks)
        if len(self.estimator.samples) < LEAST_SAMPLES or not whole or min(sizes) < 1:
            return ()
        found = [0] * len(self._blocks)
        for k, size in zip(self._kept, self.estimator.predict(sizes).block_bytes):
            found[k] = size
        return tuple(found)

    def _collect(self, sizes: tuple[int, ...], arguments: Sequence[Any], *, compiled: bool) -> None:
        """Run the forward once, and keep the sample unless something else disturbed it (the paper's filter)."""
        # The first run warms up kernels and libraries: it is made, and dropped, even while things are compiled.
        first = not self.dropped[Dropped.FIRST]
        if compiled and not first:
            self._drop(Dropped.COMPILED)
            return
        # Before the run, so that the phase itself keeps to the budget.
        peak = self._peak_bytes(sizes)
        if peak is None or peak > self._limit_bytes():
            logger.info("nothing is collected at sizes %s: it would take %s", sizes, _named_bytes(peak))
            self._drop(Dropped.OVER_BUDGET)
            return
        measured = self._measured(arguments)
        if measured is None:
            self._drop(Dropped.FAILED)
        elif first:
            self._drop(Dropped.FIRST)
        else:
            self._add(sizes, measured)

    def _measured(self, arguments: Sequence[Any]) -> Measured | None:
        """The measurement of one run; `None` if the forward cannot run outside the step, which also ends the phase."""
        assert self._forward is not None
        try:
            inner = self._take(arguments)
            # Autograd must not follow this run, and the step must draw the same random numbers as without it.
            with torch_compat.detached_run():
                return self._forward.run(inner, self._meter)
        except (RuntimeError, NotImplementedError) as error:
            logger.warning("nothing more is collected: the forward cannot be run beside the step (%s)", error)
            self._most_calls = 0  # ends the phase with this call
            return None

    def _add(self, sizes: tuple[int, ...], measured: Measured) -> None:
        # Layers with a checkpoint of the user's have no sample, and count as dropped in each run.
        checkpointed = len(self._blocks) - len(self._kept)
        if checkpointed:
            self._drop(Dropped.CHECKPOINTED, checkpointed)
        block_bytes = tuple(measured.block_bytes[k] for k in self._kept)
        block_ns = tuple(measured.block_ns[k] for k in self._kept)
        self.estimator.add(LayerSample(sizes, block_bytes, block_ns))
        count("collections")

    def _drop(self, why: Dropped, by: int = 1) -> None:
        self.dropped[why] += by
        count("collections_dropped", by)

    def _report(self) -> None:
        """Log the phase in one line, and the samples at level DEBUG."""
        samples = self.estimator.samples
        dropped = ", ".join(f"{self.dropped[why]} {why.value}" for why in Dropped if self.dropped[why])
        error = f"{self.estimator.fitted().left_out_error:.2%}" if len(samples) > 1 else "unknown"
        step_s = median(self._steps_s) if self._steps_s else 0.0
        steps = f" = {self.seconds / step_s:.1f} steps" if step_s else ""
        logger.info(
            "collected the layers at %d sizes in %d calls, %.2f s%s; error of a size from the others %s; dropped: %s",
            len(samples),
            self.calls,
            self.seconds,
            steps,
            error,
            dropped or "none",
        )
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("layers by size:\n%s", "\n".join(self.table()))

    def table(self) -> Iterator[str]:
        """A line for each layer: bytes and milliseconds at each sampled size."""
        samples = self.estimator.samples
        yield " | ".join(["layer", *(" ".join(map(str, sample.sizes)) for sample in samples)])
        for position, k in enumerate(self._kept):
            cells = (
                f"{format_bytes(sample.block_bytes[position])} {sample.block_ns[position] / 1e6:.2f} ms"
                for sample in samples
            )
            yield " | ".join([self._blocks[k].name, *cells])


def _named_bytes(peak: int | None) -> str:
    return "an unknown number of bytes" if peak is None else f"{format_bytes(peak)}, more than the budget"


def _nothing_to_take(arguments: Sequence[Any]) -> list[Any]:
    raise AssertionError("the collector has stopped")
