"""The saved layers of a captured step."""

from __future__ import annotations

from remat_compiler.ir.graph import SavePolicy
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.saved_layers import SavedLayer, SavedLayers
from remat_passes.chains.chain import Forward
from remat_passes.layers.layered_step import LayeredStep
from remat_passes.layers.model_layers import model_layers
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order


def saved_layers(problem: RematProblem) -> SavedLayers:
    """The layers of `problem`, with the storages by whose bytes `Mimose` chooses among them."""
    index = StepIndex.of(problem.graph)
    forward = Forward.of(index)
    found = model_layers(problem, forward)
    step = LayeredStep.of(index, baseline_order(index, Placement.LAZY), forward, found)
    number = {place: k for k, place in enumerate(found.layers)}
    place = tuple(number.get(at, -1) for at in found.place)
    # The user's own checkpoint regions: such layers are recomputed whatever a plan chooses.
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
