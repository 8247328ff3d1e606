"""Allocations of a planned step: their sizes add up to what the simulator counts, whatever the plan."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, generators, problems, random_steps
from remat_compiler.ir.graph import KEPT_KINDS, OpId, Phase, StorageKind
from remat_compiler.ir.plan import Plan, Transfer
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.lives import Life, owned_lives, storage_lives
from remat_compiler.simulate.timeline import simulate
from transfers_at_random import possible_transfers


def added_up(lives: list[Life], steps: int) -> list[int]:
    """Bytes alive at each step."""
    change = np.zeros(steps + 1, np.int64)
    for life in lives:
        change[min(life.made, steps)] += life.size_bytes
        if life.freed is not None:
            change[life.freed] -= life.size_bytes
    return [int(v) for v in np.cumsum(change[:-1])]


@settings(max_examples=300)
@given(problem=problems(), rng=generators(), repeats=st.integers(0, 20), moves=st.booleans())
def test_all_that_is_alive_is_counted(problem: RematProblem, rng: Random, repeats: int, moves: bool) -> None:
    plan = random_steps(rng, problem, repeats)
    if moves:
        apart: dict[int, Transfer] = {int(one.storage): one for one in possible_transfers(problem.graph, plan)}
        plan = replace(plan, transfers=tuple(apart.values()))
    lives = storage_lives(problem, plan)
    assert all(life.freed is None or life.made < life.freed <= len(plan.steps) for life in lives)
    assert added_up(lives, len(plan.steps)) == simulate(problem.graph, problem.costs, plan).live_bytes.tolist()
    owned = owned_lives(problem, plan)
    assert [one.life for one in owned] == lives
    sizes = [storage.size_bytes for storage in problem.graph.storages]
    assert all(one.storage is None or one.life.size_bytes == sizes[one.storage] for one in owned)


@settings(max_examples=300)
@given(problem=problems(), rng=generators())
def test_results_in_place_of_arguments_are_no_more(problem: RematProblem, rng: Random) -> None:
    """Wherever an argument of the result's size dies, its memory may be taken over."""
    plan = random_steps(rng, problem, 0)
    storages = tuple(replace(s, size_bytes=100) for s in problem.graph.storages)
    graph = replace(problem.graph, storages=storages)
    timeline = simulate(graph, problem.costs, plan)
    last = dict(zip(timeline.instances.storage.tolist(), timeline.instances.last.tolist()))
    workspace = list(problem.costs.workspace_bytes)
    for step, op in enumerate(plan.steps):
        dying = [s for s in graph.ops[op].reads if last.get(s) == step and storages[s].kind not in KEPT_KINDS]
        if dying and len(graph.ops[op].writes) == 1 and not storages[graph.ops[op].writes[0]].resident:
            workspace[op] = -100
    problem = replace(problem, graph=graph, costs=replace(problem.costs, workspace_bytes=tuple(workspace)))
    lives = storage_lives(problem, plan)
    timeline = simulate(graph, problem.costs, plan)
    assert added_up(lives, len(plan.steps)) == timeline.live_bytes.tolist()


def test_a_chain_in_place_is_one_allocation() -> None:
    b = ProblemBuilder()
    tangent = b.storage(64, StorageKind.TANGENT)
    first = b.run(Phase.BACKWARD, [tangent], [(64, StorageKind.TEMPORARY)])[0]
    second = b.run(Phase.BACKWARD, [first], [(64, StorageKind.TEMPORARY)], workspace=-64)[0]
    b.run(Phase.BACKWARD, [second], [(64, StorageKind.GRADIENT)], workspace=-64)
    lives = storage_lives(b.problem(), Plan(tuple(map(OpId, range(3))), 0))
    assert sorted(lives, key=str) == sorted([Life(64, 0, None), Life(64, 0, None)], key=str)


def test_an_operator_in_place_may_take_bytes_inside() -> None:
    b = ProblemBuilder()
    tangent = b.storage(64, StorageKind.TANGENT)
    first = b.run(Phase.BACKWARD, [tangent], [(64, StorageKind.TEMPORARY)])[0]
    b.run(Phase.BACKWARD, [first], [(64, StorageKind.GRADIENT)], workspace=4 - 64)
    lives = storage_lives(b.problem(), Plan(tuple(map(OpId, range(2))), 0))
    assert sorted(lives, key=str) == sorted([Life(64, 0, None), Life(64, 0, None), Life(4, 1, 2)], key=str)
