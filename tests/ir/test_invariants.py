"""Invariants of a graph: drawn graphs keep all of them, and each defect is found by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from drawn_graphs import chain, training_graphs
from remat_compiler.errors import InvalidGraph
from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageId, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.invariants import check_graph, graph_defects

GRAPH = chain([8, 16, 32])
"""Storages x, tangent, f0, f1, f2, then gradients; ops 0 to 2 forward, 3 to 5 backward."""


def sid(*ids: int) -> tuple[StorageId, ...]:
    return tuple(StorageId(i) for i in ids)


def with_op(index: int, **fields: object) -> TrainingGraph:
    ops: list[Op] = list(GRAPH.ops)
    ops[index] = replace(ops[index], **fields)  # type: ignore[arg-type]
    return replace(GRAPH, ops=tuple(ops))


def with_storage(index: int, **fields: object) -> TrainingGraph:
    storages: list[Storage] = list(GRAPH.storages)
    storages[index] = replace(storages[index], **fields)  # type: ignore[arg-type]
    return replace(GRAPH, storages=tuple(storages))


@given(training_graphs())
def test_drawn_graphs_are_well_formed(graph: TrainingGraph) -> None:
    assert graph_defects(graph) == []


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (with_op(1, id=OpId(2)), "op 2 op_1: stands at position 1"),
        (with_storage(1, id=StorageId(5)), "storage 5 tangent: stands at position 1"),
        (with_storage(2, size_bytes=-8), "storage 2 f0: -8 bytes"),
        (with_op(1, reads=sid(99)), "op 1 op_1: names storages [99], the graph has"),
        (with_op(1, reads=sid(-1)), "op 1 op_1: names storages [-1]"),
        (with_op(1, reads=sid(2, 0)), "reads [2, 0] are not ascending"),
        (with_op(1, reads=sid(2, 2)), "reads [2, 2] are not ascending"),
        (with_op(1, writes=sid(3, 3)), "writes [3, 3] repeat a storage"),
        (with_op(1, reads=sid(2, 3)), "op 1 op_1: reads and writes storages [3]"),
        (with_op(1, name="op_0"), "op 1 op_0: another op has the same name"),
        (with_op(1, reads=sid(4)), "op 1 op_1: reads f2 before any op wrote it"),
        (with_op(2, writes=sid(2)), "op 2 op_2: writes f0, which op_0 wrote"),
        (with_op(1, writes=sid(0)), "op 1 op_1: writes x, a input"),
        (with_op(1, reads=sid(1)), "op 1 op_1: is forward but reads tangent, which is backward"),
        (with_op(0, phase=Phase.TANGENT_FREE), "op 1 op_1: is forward but reads f0, which is tangent_free"),
        (with_op(2, phase=Phase.TANGENT_FREE, reads=sid(1)), "is tangent_free but reads tangent"),
        (with_op(2, writes=()), "storage 4 f2: a output that no op writes"),
        (with_op(1, traits=frozenset({Trait.COLLECTIVE})), "op 1 op_1: is collective, yet says no reason"),
        (with_op(1, traits=frozenset({Trait.UNKNOWN})), "op 1 op_1: is unknown, yet says no reason"),
        (with_op(1, traits=frozenset({Trait.RANDOM})), "op 1 op_1: is random and may be recomputed"),
        (with_op(1, replay=StorageId(2)), "op 1 op_1: writes f0, which op_0 wrote"),
        (with_op(3, writes=sid(5), replay=StorageId(6)), "op 4 op_4: reads flow2, the random state of op_3"),
    ],
)
def test_each_defect_is_found(graph: TrainingGraph, says: str) -> None:
    assert any(says in defect for defect in graph_defects(graph)), graph_defects(graph)


def test_check_graph_names_all_defects() -> None:
    check_graph(GRAPH)
    with pytest.raises(InvalidGraph) as error:
        check_graph(with_op(1, traits=frozenset({Trait.MUTATING, Trait.EFFECTFUL}), name="op_0"))
    assert len(error.value.defects) == 2
    assert "effectful, mutating" in str(error.value)


def test_a_gather_may_be_repeatable_and_no_other_collective() -> None:
    assert graph_defects(with_op(1, traits=frozenset({Trait.COLLECTIVE, Trait.GATHER}))) == []
    (defect,) = graph_defects(with_op(1, traits=frozenset({Trait.COLLECTIVE, Trait.GATHER, Trait.MUTATING})))
    assert "is mutating, yet says no reason" in defect


def test_a_random_op_with_state_or_a_reason_is_fine() -> None:
    random = frozenset({Trait.RANDOM})
    assert graph_defects(with_op(1, traits=random, no_recompute="draws anew")) == []
    state = Storage(StorageId(len(GRAPH.storages)), "rng", 16, StorageKind.TEMPORARY)
    graph = with_op(1, traits=random, replay=state.id)
    assert graph_defects(replace(graph, storages=(*GRAPH.storages, state))) == []
