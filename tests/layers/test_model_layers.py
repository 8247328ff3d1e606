"""Which operators of the forward make up a layer of the user's model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import problems
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward
from remat_passes.layers.model_layers import model_layers, module_names
from remat_passes.sequences.sequence import StepIndex

PARTS = st.sampled_from(["", "a", "0", "1", "2", "block", "a.0", "a.1.b"])
PATHS = st.lists(st.lists(PARTS, max_size=4).map(".".join), max_size=30)


def named(text: str) -> list[str]:
    return module_names(text.split())


def test_parts_of_an_encoder_layer_stay_together() -> None:
    inside = ("q", "k", "v", "attention", "ffn.0", "ffn.1")
    paths = ["bert.emb", *(f"encoder.layer.{k}.{part}" for k in range(2) for part in inside), "head"]
    assert module_names(paths) == ["", *["encoder.layer.0"] * 6, *["encoder.layer.1"] * 6, ""]


def test_a_whole_encoder_in_a_sequential_is_divided() -> None:
    paths = "0.emb 1.layer.0 1.layer.0 1.layer.1 1.layer.1 1.layer.2 1.layer.2 2.head"
    expected = "0 1.layer.0 1.layer.0 1.layer.1 1.layer.1 1.layer.2 1.layer.2 2"
    assert named(paths) == expected.split()


def test_the_parts_of_an_only_child_are_layers() -> None:
    paths = "block.0.layer.0.q block.0.layer.1.wi norm"
    assert named(paths) == ["block.0.layer.0", "block.0.layer.1", ""]


def test_what_runs_between_two_layers_belongs_to_the_first() -> None:
    names = module_names(["", "linears.0", "", "linears.1", "", "other.0", "", "other.1", ""])
    assert names == ["", "linears.0", "linears.0", "linears.1", "", "other.0", "other.0", "other.1", ""]


@pytest.mark.parametrize("paths", ["encoder head", "h.0 h.0 head", "cell.from_input cell"])
def test_without_numbered_children_there_are_none(paths: str) -> None:
    assert set(named(paths)) == {""}


@given(paths=PATHS)
def test_each_operator_belongs_to_a_module_around_it_or_between(paths: list[str]) -> None:
    names = module_names(paths)
    assert len(names) == len(paths)
    for at, (name, path) in enumerate(zip(names, paths)):
        assert not name or f"{path}.".startswith(f"{name}.") or names[at - 1] == name


@given(problem=problems())
def test_layers_cover_the_forward_in_order(problem: RematProblem) -> None:
    layers = model_layers(problem, Forward.of(StepIndex.of(problem.graph)))
    inside = [place for op, place in zip(problem.graph.ops, layers.place) if op.phase is Phase.FORWARD]
    assert list(dict.fromkeys(inside)) == list(range(len(layers.names)))
    assert {place for op, place in zip(problem.graph.ops, layers.place) if op.phase is not Phase.FORWARD} <= {-1}
    assert [layers.names[k] for k in layers.layers] == [name for name in layers.names if name]
