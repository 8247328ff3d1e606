"""What each layer of the model saves, as storages: what a collector measures, and what `Mimose` chooses layers by.

layer            encoder.layer.0          encoder.layer.1          a gap has none
storages         12 14 15 19              27 29 30 34              made in it, read by no other layer
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.graph import SavePolicy
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.chain import Forward
from remat_passes.planning.mimose import LayeredStep
from remat_passes.planning.model_layers import SEGMENT, model_layers
from remat_passes.planning.sequence import Placement, StepIndex, baseline_order


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """One layer.

    Attributes:
        name: Its module path, or ``segment 3``.
        storages: Those that are not saved where the layer is made again.
        size_bytes: Their bytes.
        checkpointed: Whether the user has a part of it made again already, so that it is no longer there to be saved.
    """

    name: str
    storages: tuple[int, ...]
    size_bytes: int
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class SavedLayers:
    """The layers of a forward.

    Attributes:
        layers: The layers, in the order of the forward.
        place: For each operator of the graph, the position in `layers` of its layer; -1 in a gap, and outside of the
            forward.
    """

    layers: tuple[SavedLayer, ...]
    place: tuple[int, ...]

    @property
    def of_modules(self) -> bool:
        """Whether they are modules of the model, which are the same at all sizes; segments need not be."""
        return not any(layer.name.startswith(SEGMENT) for layer in self.layers)


def saved_layers(problem: RematProblem) -> SavedLayers:
    """The layers of `problem`, with the storages by whose bytes `Mimose` chooses among them."""
    index = StepIndex.of(problem.graph)
    forward = Forward.of(index)
    found = model_layers(problem, forward)
    step = LayeredStep.of(index, baseline_order(index, Placement.LAZY), forward, found)
    number = {place: k for k, place in enumerate(found.layers)}
    place = tuple(number.get(at, -1) for at in found.place)
    checkpointed = {
        place[op.id] for op in problem.graph.ops if op.save_policy is SavePolicy.MUST_NOT_SAVE and place[op.id] >= 0
    }
    storages: list[list[int]] = [[] for _ in number]
    for s in step.saved:
        storages[step.layer_of[s]].append(s)
    layers = (
        SavedLayer(found.names[at], tuple(storages[k]), step.layer_bytes[k], k in checkpointed)
        for at, k in number.items()
    )
    return SavedLayers(tuple(layers), place)
