"""A step in layers: the values that belong to one layer alone, and plans that recompute whole layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remat_compiler.ir.plan import Plan
from remat_passes.chains.chain import Forward, stages_of
from remat_passes.layers.model_layers import ModelLayers
from remat_passes.sequences.sequence import Order, StepIndex, recompute


@dataclass(frozen=True, slots=True, eq=False)
class LayeredStep:
    """The values of each layer that need not be saved if the layer is recomputed.

    Attributes:
        layer_bytes: For each layer, in the order of the forward, the bytes that are not saved if it is recomputed.
        layer_of: For each storage, the layer that makes it if no other layer reads it; else -1.
        saved: The storages whose bytes are in `layer_bytes`.
        stages: Stage of each operator of the backward, see `remat_passes.chains.chain`.
    """

    layer_bytes: tuple[int, ...]
    layer_of: tuple[int, ...]
    saved: tuple[int, ...]
    stages: tuple[int, ...]

    @staticmethod
    def of(index: StepIndex, order: Order, forward: Forward, layers: ModelLayers) -> LayeredStep:
        """The step of one order."""
        # Layers and gaps are numbered together; only layers get a number here.
        number = {place: k for k, place in enumerate(layers.layers)}
        place = [-1 if at < 0 else layers.place[forward.ops[at]] for at in forward.made_at]
        layer_of = [number.get(at, -1) for at in place]
        for i in order.forward:
            for s in index.reads[i]:
                # Another layer or gap reads it: recomputing that one must find it saved.
                if layers.place[i] != place[s]:
                    layer_of[s] = -1
        stages = stages_of(index, order, place)
        read = [False] * len(place)
        for stage, i in zip(stages, order.backward):
            for s in index.reads[i]:
                read[s] = True
                # Read while the backward is still at a later layer, before this one is recomputed.
                if place[s] < stage:
                    layer_of[s] = -1
        # Values that the backward does not read are not saved in any case, nor are those that must not be.
        saved = [s for s, layer in enumerate(layer_of) if layer >= 0 and read[s] and not index.unsavable[s]]
        sizes = [0] * len(number)
        for s in saved:
            sizes[layer_of[s]] += index.size_bytes[s]
        return LayeredStep(tuple(sizes), tuple(layer_of), tuple(saved), tuple(stages))

    def plan(self, index: StepIndex, order: Order, chosen: Iterable[int]) -> Plan:
        """The plan that recomputes the layers `chosen`."""
        again = frozenset(chosen)
        return recompute(index, order, [layer not in again for layer in self.layer_of], self.stages)
