"""Mimose's greedy scheduler: whole layers are recomputed, chosen by their bytes until they cover the excess.

    bytes      40 40 39 | 31 30 | 12          buckets: within 10 % of the largest, the earlier layer first
    excess     95  →  40 (layer 0)  →  55 - 40 (layer 1)  →  15: the nearest bucket that covers it is 31 30

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.4
and Algorithm 1.  A layer is recomputed as `torch.utils.checkpoint` does it: of its values only those that other layers
read are saved, and the rest is recomputed when the backward reaches the layer.

The printed algorithm and the paper's text differ in places.  This is how they are read:

- Line 8 compares with ``>``; the text says ±10 %, so a layer of exactly 90 % of the bucket's first is in the bucket.
- Line 17 asks for a layer *above* the excess; one that equals it covers it, since line 16 ends the loop at 0.
- Line 21 takes the top of the candidates, which is the bucket of the *largest* layers; the text takes the layer
  *nearest* to the excess.  So it is the last candidate, and in it the earliest layer that covers the excess: the
  earliest of all may be up to 10 % smaller than the bucket's largest, leave a little, and cost a whole further layer.
- Line 19 takes the first layer of the first bucket, "layer with largest activation": the earliest of those alike.
- The loop of line 16 also ends when no layer is left, and layers without bytes are in no bucket.

Where we deviate: Mimose knows only the sum of its estimates (line 15).  That is the first excess here, too, but the
simulator is the judge: if the peak of the plan is above the budget, the difference is the next excess, and the same
loop goes on with the remaining layers.  The bytes of a layer are exactly those that are not saved if it is recomputed,
unless `Mimose.layer_bytes` holds estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.errors import OptionError
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate_arrays
from remat_passes.chains.chain import Forward
from remat_passes.layers.layered_step import LayeredStep
from remat_passes.layers.model_layers import ModelLayers, model_layers
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order

Buckets = list[list[int]]


@dataclass(frozen=True, slots=True)
class Mimose:
    """Whole layers of the model recomputed, chosen greedily by their bytes (Liao et al. 2022, Algorithm 1).

    Attributes:
        layer_bytes: Bytes of each layer, in the order of the forward, as an estimator predicts them; if empty, those
            of the problem.
    """

    name: ClassVar[str] = "mimose"
    layer_bytes: tuple[int, ...] = ()

    def plan(self, problem: RematProblem) -> PlanResult:
        """The plan of the fewest recomputed bytes that fits the budget, or else the one of the smallest peak.

        Raises:
            OptionError: `layer_bytes` are not as many as the layers of `problem`, or one is negative.
        """
        index = StepIndex.of(problem.graph)
        forward = Forward.of(index)
        layers = model_layers(problem, forward)
        return choose(problem, self.name, self._candidates(problem, index, forward, layers))

    def _candidates(
        self, problem: RematProblem, index: StepIndex, forward: Forward, layers: ModelLayers
    ) -> Iterator[Candidate]:
        """For each placement, the plan of the last round and the lowest one."""
        arrays = GraphArrays.of(problem.graph, problem.costs)
        for placement in Placement:
            order = baseline_order(index, placement)
            step = LayeredStep.of(index, order, forward, layers)
            sizes = self._sizes(step.layer_bytes)
            buckets = buckets_of(sizes)
            # Line 15; estimates leave out what no layer holds, so it may be too small or even negative.
            excess = sum(sizes) - problem.budget_bytes
            chosen: list[int] = []
            lowest = None
            while True:
                chosen += take(buckets, sizes, excess)
                plan = step.plan(index, order, chosen)
                peak = simulate_arrays(arrays, np.array(plan.steps, np.int64), plan.boundary).peak_bytes
                found = Candidate(plan, _stats(placement, chosen, sizes))
                excess = peak - problem.budget_bytes
                # Recomputing more layers can raise the peak: the last plan need not be the lowest.
                if lowest is None or peak < lowest[0]:
                    lowest = peak, found
                if excess <= 0 or not buckets:
                    break
            # The two are often the same plan.
            yield from dict.fromkeys([found, lowest[1]])

    def _sizes(self, exact: Sequence[int]) -> Sequence[int]:
        """The bytes by which layers are chosen."""
        if not self.layer_bytes:
            return exact
        if len(self.layer_bytes) != len(exact) or min(self.layer_bytes) < 0:
            raise OptionError(
                f"got layer_bytes for {len(self.layer_bytes)} layers, the least {min(self.layer_bytes)}; "
                f"the model has {len(exact)} layers: give bytes, 0 or more, for each, in the order of the forward"
            )
        return self.layer_bytes


def choose_layers(layer_bytes: Sequence[int], excess_bytes: int) -> tuple[int, ...]:
    """Algorithm 1: the layers to recompute, in the order of their choice.

    Args:
        layer_bytes: Bytes of each layer, in the order of the forward.
        excess_bytes: Bytes that the chosen layers must cover; if all together do not, all that have bytes are chosen.
    """
    return tuple(take(buckets_of(layer_bytes), layer_bytes, excess_bytes))


def buckets_of(layer_bytes: Sequence[int]) -> Buckets:
    """Lines 3 to 14: layers of at least 90 % of the bytes of the first, ascending; the largest bucket first."""
    buckets: Buckets = []
    first = 0
    for layer in sorted(range(len(layer_bytes)), key=lambda layer: (-layer_bytes[layer], layer)):
        size = layer_bytes[layer]
        if size <= 0:
            break
        # 90 % in integers; the first layer of a bucket is its largest, as they come by size.
        if not buckets or 10 * size < 9 * first:
            first = size
            buckets.append([])
        buckets[-1].append(layer)
    # Section 4.4: layers late in the forward are recomputed early in the backward, while most others are alive.
    for bucket in buckets:
        bucket.sort()
    return buckets


def take(buckets: Buckets, layer_bytes: Sequence[int], excess_bytes: int) -> list[int]:
    """Lines 16 to 25: layers taken out of `buckets` until they cover the excess or none is left."""
    taken: list[int] = []
    while excess_bytes > 0 and buckets:
        # Every layer of a bucket has more bytes than any of the next one, so the nearest is the last.
        bucket, layer = buckets[0], buckets[0][0]
        for candidate in reversed(buckets):
            covering = next((one for one in candidate if layer_bytes[one] >= excess_bytes), None)
            if covering is not None:
                bucket, layer = candidate, covering
                break
        bucket.remove(layer)
        if not bucket:
            buckets.remove(bucket)
        taken.append(layer)
        excess_bytes -= layer_bytes[layer]
    return taken


def _stats(placement: Placement, chosen: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[str, str], ...]:
    return (
        ("layers", str(len(sizes))),
        ("made again", str(len(chosen))),
        ("placement", placement.value),
    )
