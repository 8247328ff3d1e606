"""Layers with the storages that they save: the same bytes that `Mimose` chooses by."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from builders import problems
from planning.test_mimose import encoders
from remat_compiler.ir.graph import SavePolicy
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward
from remat_passes.layers.layered_step import LayeredStep
from remat_passes.layers.model_layers import model_layers
from remat_passes.layers.saved_layers import saved_layers
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order


@given(problems())
@settings(max_examples=60)
def test_storages_have_the_bytes_of_their_layer(problem: RematProblem) -> None:
    """And are made in it, by an operator of the forward; no storage is of two layers."""
    index = StepIndex.of(problem.graph)
    forward = Forward.of(index)
    step = LayeredStep.of(index, baseline_order(index, Placement.LAZY), forward, model_layers(problem, forward))
    found = saved_layers(problem)
    assert tuple(layer.size_bytes for layer in found.layers) == step.layer_bytes
    for number, layer in enumerate(found.layers):
        assert sum(problem.graph.storages[s].size_bytes for s in layer.storages) == layer.size_bytes
        assert all(found.place[index.producer[s]] == number for s in layer.storages)
    every = [s for layer in found.layers for s in layer.storages]
    assert len(every) == len(set(every))


def test_modules_segments_and_what_the_user_makes_again() -> None:
    problem = encoders()
    found = saved_layers(problem)
    assert [layer.name for layer in found.layers] == [f"model.layer.{k}" for k in range(6)]
    assert found.of_modules
    assert not saved_layers(encoders(modules=False)).of_modules
    marked = found.place.index(2)
    ops = tuple(
        replace(op, save_policy=SavePolicy.MUST_NOT_SAVE) if op.id == marked else op for op in problem.graph.ops
    )
    again = saved_layers(replace(problem, graph=replace(problem.graph, ops=ops)))
    assert [layer.checkpointed for layer in again.layers] == [False, False, True, False, False, False]
    assert again.layers[2].size_bytes < found.layers[2].size_bytes
