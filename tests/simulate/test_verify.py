"""The verifier on operators with effects and on what must be saved: each rule broken by hand, and refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from drawn_graphs import GraphBuilder
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.verify import verify

UNLIMITED = 10**9
ONE_OF_EACH = (Trait.MUTATING, Trait.COLLECTIVE, Trait.EFFECTFUL, Trait.UNKNOWN)
"""Traits of operators that run once; a random one may run again."""


def plan(steps: Sequence[int], boundary: int) -> Plan:
    return Plan(tuple(map(OpId, steps)), boundary)


def problem(graph: TrainingGraph) -> RematProblem:
    n = len(graph.ops)
    return RematProblem(graph, CostTable((1,) * n, (0,) * n, ("test",) * n), UNLIMITED)


def effects(trait: Trait, *, replays: bool = True) -> RematProblem:
    """f0 (saved by demand), two operators of `trait` f1 and f2, f3 -> b4 (random), b5 (random), b6 (gradient)."""
    b = GraphBuilder()
    x = b.storage(8, StorageKind.INPUT)
    values = [x, *(b.storage(8) for _ in range(3)), b.storage(8, StorageKind.OUTPUT)]
    state = {i: b.storage(4) if trait is Trait.RANDOM and replays else None for i in (1, 2)}
    b.op([x], [values[1]], save_policy=SavePolicy.MUST_SAVE)
    for i in (1, 2):
        b.op([values[1]], [values[i + 1]], traits=frozenset({trait}), replay=state[i])
    b.op([values[2], values[3]], [values[4]])
    tangent = b.storage(8, StorageKind.TANGENT)
    noise = [b.storage(8, StorageKind.TEMPORARY) for _ in range(2)]
    for made in noise:
        b.op([tangent], [made], Phase.BACKWARD, traits=frozenset({Trait.RANDOM}), no_recompute="draws in the backward")
    reads = [tangent, noise[0], values[1], values[2], values[3]]
    b.op(reads, [b.storage(8, StorageKind.GRADIENT)], Phase.BACKWARD)
    return problem(b.graph())


GOOD = plan([0, 1, 2, 3, 4, 5, 6], 4)


@pytest.mark.parametrize("trait", Trait)
def test_the_order_of_the_program_passes(trait: Trait) -> None:
    assert verify(effects(trait), GOOD) == []


def test_a_random_operator_may_replay_in_any_order() -> None:
    assert verify(effects(Trait.RANDOM), plan([0, 1, 2, 3, 4, 2, 1, 5, 2, 6], 4)) == []


@pytest.mark.parametrize(
    ("bad", "rule", "step"),
    [
        (plan([0, 2, 1, 3, 4, 5, 6], 4), Rule.EFFECT_ORDER, 2),
        (plan([0, 1, 2, 3, 5, 4, 6], 4), Rule.EFFECT_ORDER, 5),
        (plan([0, 1, 2, 3, 4, 6], 4), Rule.EFFECT_MISSING, 6),
        (plan([0, 1, 3, 4, 5, 6], 3), Rule.FORWARD_MISSING, 3),
        (plan([0, 1, 2, 3, 4, 5, 4, 6], 4), Rule.RECOMPUTE, 6),
        (plan([0, 1, 2, 3, 0, 4, 5, 6], 4), Rule.MUST_SAVE, 4),
    ],
)
@pytest.mark.parametrize("trait", Trait)
def test_each_sabotage_is_refused(trait: Trait, bad: Plan, rule: Rule, step: int) -> None:
    found = verify(effects(trait), bad)
    assert (rule, step) in [(v.rule, v.step) for v in found], found
    assert all(v.detail for v in found)


GATHERED = [0, 1, 2, 3, 4, 2, 1, 5, 2, 6]


def test_a_gather_may_run_again_anywhere_behind_its_first_time_in_order() -> None:
    asked = effects(Trait.COLLECTIVE)
    gathers = tuple(
        replace(op, traits=op.traits | {Trait.GATHER}) if Trait.COLLECTIVE in op.traits else op
        for op in asked.graph.ops
    )
    asked = replace(asked, graph=replace(asked.graph, ops=gathers))
    assert verify(asked, plan(GATHERED, 4)) == []
    assert [v.rule for v in verify(asked, plan([0, 2, 1, *GATHERED[3:]], 4))] == [Rule.EFFECT_ORDER]
    # Where ranks may not repeat it, the capture gives the reason.
    held = tuple(replace(op, no_recompute="communicates") if op.id == 1 else op for op in gathers)
    asked = replace(asked, graph=replace(asked.graph, ops=held))
    assert [(v.rule, v.step) for v in verify(asked, plan(GATHERED, 4))] == [(Rule.RECOMPUTE, 6)]


@pytest.mark.parametrize("trait", ONE_OF_EACH)
def test_what_has_effects_runs_once_even_where_the_graph_gives_no_reason(trait: Trait) -> None:
    found = verify(effects(trait), plan([0, 1, 2, 3, 4, 1, 5, 6], 4))
    assert [(v.rule, v.step) for v in found] == [(Rule.RECOMPUTE, 5)]
    assert trait.value in found[0].detail


def test_a_random_operator_without_a_state_to_replay_runs_once() -> None:
    found = verify(effects(Trait.RANDOM, replays=False), plan([0, 1, 2, 3, 4, 1, 5, 6], 4))
    assert [v.rule for v in found] == [Rule.RECOMPUTE]


@pytest.mark.parametrize("trait", ONE_OF_EACH)
def test_a_tangent_free_operator_with_effects_may_stand_in_either_part_but_not_be_dropped(trait: Trait) -> None:
    b = GraphBuilder()
    x, out = b.storage(8, StorageKind.INPUT), b.storage(8, StorageKind.OUTPUT)
    tangent = b.storage(8, StorageKind.TANGENT)
    b.op([x], [out])
    b.op([x], [b.storage(8, StorageKind.TEMPORARY)], Phase.TANGENT_FREE, traits=frozenset({trait}))
    b.op([tangent], [b.storage(8, StorageKind.GRADIENT)], Phase.BACKWARD)
    asked = problem(b.graph())
    assert all(verify(asked, good) == [] for good in (plan([0, 1, 2], 2), plan([0, 1, 2], 1), plan([0, 2, 1], 1)))
    assert [(v.rule, v.step) for v in verify(asked, plan([0, 2], 1))] == [(Rule.EFFECT_MISSING, 2)]


def test_what_must_be_saved_is_read_from_the_forward() -> None:
    """Also where the repetition is the only one that the backward reads."""
    found = verify(effects(Trait.RANDOM), plan([0, 1, 2, 3, 4, 5, 0, 6], 4))
    assert [(v.rule, v.step) for v in found] == [(Rule.MUST_SAVE, 6)]
