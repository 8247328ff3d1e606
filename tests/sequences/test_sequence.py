from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings

from builders import ProblemBuilder, generators, problems, random_steps
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.sequences.sequence import (
    Order,
    Placement,
    StepIndex,
    baseline_order,
    drop_dead_repeats,
    recompute,
    recompute_closure,
)

TEMPORARY, GRADIENT = StorageKind.TEMPORARY, StorageKind.GRADIENT


def small() -> ProblemBuilder:
    """f0 -> f1 -> t2 (mask of f1) and f3; t4 makes a gradient nobody reads; b5(f3), b6(mask, f0)."""
    b = ProblemBuilder()
    x = b.storage(100, StorageKind.INPUT)
    f0 = b.forward([x], 10)
    f1 = b.forward([f0], 10)
    mask = b.run(Phase.TANGENT_FREE, [f1], [(1, TEMPORARY)])[0]
    f3 = b.forward([f1], 10)
    b.run(Phase.TANGENT_FREE, [], [(1, GRADIENT)])
    g = b.backward([b.storage(10, StorageKind.TANGENT), f3], 10)
    b.run(Phase.BACKWARD, [g, mask, f0], [(10, GRADIENT)])
    return b


def plan(steps: Sequence[int], boundary: int) -> Plan:
    return Plan(tuple(map(OpId, steps)), boundary)


@pytest.mark.parametrize(
    ("placement", "order"),
    [
        (Placement.LAZY, Order((0, 1, 3), (5, 2, 6, 4))),
        (Placement.JOINT, Order((0, 1, 2, 3), (4, 5, 6))),
    ],
)
def test_both_placements(placement: Placement, order: Order) -> None:
    assert baseline_order(StepIndex.of(small().graph()), placement) == order


def test_tangent_free_operators_that_nobody_reads_are_left_out() -> None:
    b = small()
    b.run(Phase.TANGENT_FREE, [], [(1, TEMPORARY)])
    index = StepIndex.of(b.graph())
    for placement in Placement:
        order = baseline_order(index, placement)
        assert 7 not in (*order.forward, *order.backward)


def test_unsavable_mask_is_never_placed_in_the_forward() -> None:
    b = ProblemBuilder()
    f0 = b.forward([b.storage(100, StorageKind.INPUT)], 10)
    mask = b.run(Phase.TANGENT_FREE, [f0], [(1, TEMPORARY)], save_policy=SavePolicy.MUST_NOT_SAVE)[0]
    b.forward([f0], 10)
    b.backward([b.storage(10, StorageKind.TANGENT), mask], 10)
    assert baseline_order(StepIndex.of(b.graph()), Placement.JOINT) == Order((0, 2), (1, 3))


def test_closure_stops_at_what_is_at_hand() -> None:
    index = StepIndex.of(small().graph())
    f0, f1, f3 = index.writes[0][0], index.writes[1][0], index.writes[3][0]
    at_hand = index.always_at_hand()
    assert recompute_closure(index, [f3], at_hand) == [0, 1, 3]
    at_hand[f0] = True
    assert recompute_closure(index, [f3, f1], at_hand) == [1, 3]
    assert recompute_closure(index, [f0], at_hand) == []


def test_recompute_just_in_time_and_by_stage() -> None:
    index = StepIndex.of(small().graph())
    order = baseline_order(index, Placement.LAZY)
    nothing = [False] * len(index.producer)
    # f0 and f1 are made once for f3, and serve the mask and b6 as well.
    assert recompute(index, order, nothing) == plan([0, 1, 3, 0, 1, 3, 5, 2, 6, 4], 3)
    saved = list(nothing)
    saved[index.writes[3][0]] = True
    assert recompute(index, order, saved) == plan([0, 1, 3, 5, 0, 1, 2, 6, 4], 3)
    assert recompute(index, order, saved, [1, 1, 1, 0]) == plan([0, 1, 3, 0, 1, 5, 2, 6, 4], 3)


def test_pinned_results_are_saved() -> None:
    b = ProblemBuilder()
    f0 = b.forward([b.storage(100, StorageKind.INPUT)], 10, save_policy=SavePolicy.MUST_SAVE)
    f1 = b.forward([f0], 10)
    b.backward([b.storage(10, StorageKind.TANGENT), f1], 10)
    index = StepIndex.of(b.graph())
    found = recompute(index, baseline_order(index, Placement.LAZY), [False] * len(index.producer))
    assert found == plan([0, 1, 1, 2], 2)


def test_dead_repeats_are_dropped() -> None:
    index = StepIndex.of(small().graph())
    sloppy = plan([0, 1, 2, 3, 0, 1, 3, 2, 5, 3, 1, 2, 6, 4, 0], 4)
    # The first mask is dead, since a later one is read: it goes, and the boundary with it.
    assert drop_dead_repeats(index, sloppy) == plan([0, 1, 3, 0, 1, 3, 5, 1, 2, 6, 4], 3)


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_dropping_dead_repeats_keeps_a_plan_valid_and_costs_nothing(problem: RematProblem, rng: Random) -> None:
    sloppy = random_steps(rng, problem)
    index = StepIndex.of(problem.graph)
    lean = drop_dead_repeats(index, sloppy)
    assert drop_dead_repeats(index, lean) == lean
    before = simulate(problem.graph, problem.costs, sloppy)
    after = simulate(problem.graph, problem.costs, lean)
    assert [v for v in verify(problem, lean, after.peak_bytes) if v.rule not in (Rule.SAVED, Rule.MUST_SAVE)] == []
    assert after.peak_bytes <= before.peak_bytes
    assert after.time_ns <= before.time_ns
