"""Fingerprints heed what plans depend on, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from builders import random_problem, random_steps, residual
from remat_compiler.ir.fingerprint import fingerprint, parameter_sizes, structure
from remat_compiler.ir.graph import Op, SavePolicy, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate


def renumbered(rng: Random, problem: RematProblem, target: str | None = "aten.else.default") -> RematProblem:
    """`problem` with other names, and its storages in another order; `target` for all operators unless it is `None`."""
    graph = problem.graph
    order = rng.sample(range(len(graph.storages)), len(graph.storages))
    new = {old: StorageId(position) for position, old in enumerate(order)}

    def renamed(op: Op) -> Op:
        return replace(
            op,
            name=f"other_{op.id}",
            target=op.target if target is None else target,
            nodes=(),
            module="",
            source="",
            reads=tuple(sorted(new[s] for s in op.reads)),
            writes=tuple(new[s] for s in op.writes),
            replay=None if op.replay is None else new[op.replay],
        )

    storages = tuple(replace(graph.storages[old], id=new[old], name=f"v{new[old]}") for old in order)
    costs = replace(problem.costs, provenance=("other",) * len(graph.ops))
    return replace(problem, graph=TrainingGraph(tuple(map(renamed, graph.ops)), storages), costs=costs)


@pytest.mark.parametrize("seed", range(60))
def test_names_and_numbers_do_not_count(seed: int) -> None:
    """The same fingerprint, and the same sequence is a plan of the same peak and time."""
    rng = Random(seed)
    problem = random_problem(rng)
    other = renumbered(rng, problem)
    check_graph(other.graph)
    assert fingerprint(other) == fingerprint(problem)
    assert parameter_sizes(other) == parameter_sizes(problem)
    assert structure(renumbered(rng, problem, None)) == structure(problem) != structure(other)
    plan = random_steps(rng, problem)
    one, two = (simulate(p.graph, p.costs, plan) for p in (problem, other))
    assert one.live_bytes.tolist() == two.live_bytes.tolist()
    assert (one.time_ns, one.saved_bytes) == (two.time_ns, two.saved_bytes)


def with_op(problem: RematProblem, index: int, **changes: object) -> RematProblem:
    ops = list(problem.graph.ops)
    ops[index] = replace(ops[index], **changes)  # type: ignore[arg-type]
    return replace(problem, graph=replace(problem.graph, ops=tuple(ops)))


def with_storage(problem: RematProblem, index: int, change: Callable[[Storage], Storage]) -> RematProblem:
    storages = list(problem.graph.storages)
    storages[index] = change(storages[index])
    return replace(problem, graph=replace(problem.graph, storages=tuple(storages)))


def with_cost(problem: RematProblem, **changes: tuple[int, ...]) -> RematProblem:
    return replace(problem, costs=replace(problem.costs, **changes))  # type: ignore[arg-type]


def changes_of_structure(problem: RematProblem) -> dict[str, RematProblem]:
    """`problem`, with one thing changed that decides which sequences are plans."""
    ops = problem.graph.ops
    dropout = next(op for op in ops if op.replay is not None)
    return {
        "reads": with_op(problem, 1, reads=(*ops[1].reads[1:], ops[0].reads[0])),
        "pinned": with_op(problem, 1, no_recompute="a collective"),
        "policy": with_op(problem, 1, save_policy=SavePolicy.MUST_SAVE),
        "state": with_op(problem, dropout.id, replay=None, writes=(*dropout.writes, dropout.replay)),
        "traits": with_op(problem, dropout.id, traits=frozenset()),
        "phase": with_op(problem, 1, phase=ops[-1].phase),
        "kind": with_storage(problem, 3, lambda s: replace(s, kind=StorageKind.OUTPUT)),
    }


def test_all_else_counts() -> None:
    problem = residual(2)
    costs = problem.costs
    changed = {
        **changes_of_structure(problem),
        "bytes": with_storage(problem, 3, lambda s: replace(s, size_bytes=s.size_bytes + 1)),
        "time": with_cost(problem, time_ns=(costs.time_ns[0] + 1, *costs.time_ns[1:])),
        "workspace": with_cost(problem, workspace_bytes=(1, *costs.workspace_bytes[1:])),
    }
    prints = {name: fingerprint(other) for name, other in changed.items()}
    assert len({fingerprint(problem), *prints.values()}) == 1 + len(changed), prints


def test_limits_do_not_count() -> None:
    problem = residual(2)
    assert fingerprint(replace(problem, budget_bytes=1, max_added_ns=1)) == fingerprint(problem)


def test_structure_heeds_what_plans_must_not_break_and_no_sizes() -> None:
    problem = residual(2)
    changed = {**changes_of_structure(problem), "target": with_op(problem, 1, target="aten.else.default")}
    prints = {name: structure(other) for name, other in changed.items()}
    assert len({structure(problem), *prints.values()}) == 1 + len(changed), prints
    costs = problem.costs
    larger = with_storage(problem, 3, lambda s: replace(s, size_bytes=2 * s.size_bytes))
    slower = with_cost(larger, time_ns=(costs.time_ns[0] + 1, *costs.time_ns[1:]))
    other = replace(with_cost(slower, workspace_bytes=(1, *costs.workspace_bytes[1:])), budget_bytes=1, max_added_ns=1)
    assert structure(other) == structure(problem)


def test_sizes_of_parameters_are_told_apart_from_others() -> None:
    problem = residual(2)
    wider = [s.id for s in problem.graph.storages if s.kind is StorageKind.PARAMETER]
    for storage in problem.graph.storages:
        other = with_storage(problem, storage.id, lambda s: replace(s, size_bytes=s.size_bytes + 1))
        assert (parameter_sizes(other) != parameter_sizes(problem)) == (storage.id in wider)
