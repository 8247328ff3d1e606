"""Transfers: bytes that are off the device do not count, and nothing that is off it is used."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, chain, generators, problems, random_steps, with_tiers
from remat_compiler.ir.graph import OpId, Phase, StorageId, StorageKind
from remat_compiler.ir.plan import PAGE_BYTES, Plan, Transfer
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.interlude import planned_around, with_interlude, without_interlude
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.planning.interface import Candidate, choose
from transfers_at_random import possible_transfers

IGNORED = {Rule.SAVED, Rule.MUST_SAVE, Rule.BUDGET}
"""Random plans heed neither the user's tags nor a budget."""


@settings(max_examples=300)
@given(problem=problems(), rng=generators(), repeats=st.integers(0, 20))
def test_simulator_and_verifier_agree_on_what_is_away(problem: RematProblem, rng: Random, repeats: int) -> None:
    plan = random_steps(rng, problem, repeats)
    chosen = [one for one in possible_transfers(problem.graph, plan) if rng.random() < 0.5]
    moved = replace(plan, transfers=tuple(chosen))
    before, after = (simulate(problem.graph, problem.costs, one) for one in (plan, moved))
    assert {v.rule for v in verify(with_tiers(problem), moved, after.peak_bytes)} <= IGNORED
    for step in range(len(plan.steps)):
        away = [one for one in chosen if one.out_after <= step < one.back_before]
        freed = sum(problem.graph.storages[one.storage].size_bytes for one in away)
        assert after.live_bytes[step] == before.live_bytes[step] - freed
        assert sorted([*after.live_at(step), *(one.storage for one in away)]) == before.live_at(step)
    between = [one for one in chosen if one.out_after <= plan.boundary < one.back_before]
    freed = sum(problem.graph.storages[one.storage].size_bytes for one in between)
    assert after.saved_bytes == before.saved_bytes - freed
    assert (after.time_ns, after.added_ns) == (before.time_ns, before.added_ns)


@settings(max_examples=200)
@given(problem=problems(), rng=generators(), shift=st.sampled_from([(-1, 0), (0, 1)]))
def test_a_transfer_that_lasts_one_step_longer_is_refused(
    problem: RematProblem, rng: Random, shift: tuple[int, int]
) -> None:
    plan = random_steps(rng, problem, 10)
    for one in possible_transfers(problem.graph, plan):
        longer = Transfer(one.storage, one.out_after + shift[0], one.back_before + shift[1], one.tier)
        rules = {v.rule for v in verify(with_tiers(problem), replace(plan, transfers=(longer,)))}
        assert rules & {Rule.TRANSFER_AWAY, Rule.TRANSFER_USELESS, Rule.TRANSFER_PLACE}


def small() -> tuple[RematProblem, Plan]:
    """f0 -> f1 -> f2 -> f3 (kept); b4 reads f2, b5 reads f0.  f0 may be away in the steps 2 to 4."""
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    first = b.forward([x], 10)
    second = b.forward([first], 20)
    third = b.forward([second], 30)
    b.run(Phase.FORWARD, [third], [(1, StorageKind.OUTPUT)])
    tangent = b.storage(5, StorageKind.TANGENT)
    (flow,) = b.run(Phase.BACKWARD, [tangent, third], [(2, StorageKind.TEMPORARY)])
    b.run(Phase.BACKWARD, [flow, first], [(7, StorageKind.GRADIENT)])
    return with_tiers(b.problem()), Plan(tuple(map(OpId, range(6))), 4)


def test_what_is_away_between_forward_and_backward_is_not_held() -> None:
    problem, plan = small()
    moved = replace(plan, transfers=(Transfer(StorageId(1), 2, 5),))
    before, after = (simulate(problem.graph, problem.costs, one) for one in (plan, moved))
    assert (before.live_bytes - after.live_bytes).tolist() == [0, 0, 10, 10, 10, 0]
    assert (before.saved_bytes, after.saved_bytes) == (10 + 30 + 1, 30 + 1)
    assert verify(problem, moved, after.peak_bytes) == []


@pytest.mark.parametrize(
    ("transfers", "rule"),
    [
        ([Transfer(StorageId(99), 2, 5)], Rule.TRANSFER_PLACE),
        ([Transfer(StorageId(1), 0, 5)], Rule.TRANSFER_PLACE),
        ([Transfer(StorageId(1), 4, 4)], Rule.TRANSFER_PLACE),
        ([Transfer(StorageId(1), 2, 6)], Rule.TRANSFER_PLACE),
        ([Transfer(StorageId(0), 2, 5)], Rule.TRANSFER_KIND),
        ([Transfer(StorageId(4), 4, 5)], Rule.TRANSFER_KIND),
        ([Transfer(StorageId(5), 4, 5)], Rule.TRANSFER_KIND),
        ([Transfer(StorageId(3), 1, 2)], Rule.TRANSFER_USELESS),
        ([Transfer(StorageId(2), 3, 5)], Rule.TRANSFER_USELESS),
        ([Transfer(StorageId(1), 1, 5)], Rule.TRANSFER_AWAY),
        ([Transfer(StorageId(2), 2, 4)], Rule.TRANSFER_AWAY),
        ([Transfer(StorageId(1), 2, 5), Transfer(StorageId(1), 3, 4)], Rule.TRANSFER_TWICE),
        ([Transfer(StorageId(1), 2, 3), Transfer(StorageId(1), 3, 5)], Rule.TRANSFER_TWICE),
    ],
)
def test_each_sabotage_is_refused(transfers: list[Transfer], rule: Rule) -> None:
    problem, plan = small()
    assert rule in {v.rule for v in verify(problem, replace(plan, transfers=tuple(transfers)))}


@pytest.mark.parametrize(
    ("moved", "taken_over"), [((), True), ((1,), False), ((2,), False), ((1, 2), False)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("own", [0, 4])
def test_no_result_takes_over_memory_of_what_came_back(moved: tuple[int, ...], taken_over: bool, own: int) -> None:
    """Two values of one size end at an operator whose result takes over the memory of one: who knows of which."""
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    first = b.forward([x], 64)
    second = b.forward([x], 64)
    b.run(Phase.FORWARD, [first, second], [(1, StorageKind.OUTPUT)])
    b.run(Phase.FORWARD, [x], [(1, StorageKind.OUTPUT)])
    tangent = b.storage(1, StorageKind.TANGENT)
    (flow,) = b.run(Phase.BACKWARD, [tangent, first, second], [(64, StorageKind.TEMPORARY)], workspace=own - 64)
    b.run(Phase.BACKWARD, [flow], [(1, StorageKind.GRADIENT)])
    problem = with_tiers(b.problem())
    plan = Plan(tuple(map(OpId, range(6))), 4, tuple(Transfer(StorageId(s), 3, 4) for s in moved))
    timeline = simulate(problem.graph, problem.costs, plan)
    assert timeline.live_bytes[4] == 2 * 64 + 2 + 1 + own + (0 if taken_over else 64)
    assert verify(problem, plan, timeline.peak_bytes) == []


def test_what_is_moved_needs_its_tier_and_room_in_whole_pages() -> None:
    problem, plan = small()
    one = replace(plan, transfers=(Transfer(StorageId(1), 2, 5),))
    assert verify(replace(problem, offload_bytes=PAGE_BYTES), one) == []
    for short in (PAGE_BYTES - 1, 0):
        (found,) = verify(replace(problem, offload_bytes=short), one)
        assert (found.rule, found.detail) == (Rule.TRANSFER_ROOM, f"{PAGE_BYTES} bytes, of {short}")
    links = problem.costs.links
    for link, other in (links, links[::-1]):
        only = replace(problem, costs=replace(problem.costs, links=(link,)))
        moved = replace(one, transfers=(replace(one.transfers[0], tier=other.tier),))
        assert [v.rule for v in verify(only, moved)] == [Rule.TRANSFER_TIER]


def test_a_random_state_stays() -> None:
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    (mask,) = b.run(Phase.FORWARD, [x], [(4, StorageKind.ACTIVATION)], replay_bytes=16)
    b.run(Phase.FORWARD, [mask], [(1, StorageKind.OUTPUT)])
    tangent = b.storage(1, StorageKind.TANGENT)
    b.run(Phase.BACKWARD, [tangent, mask], [(1, StorageKind.GRADIENT)])
    problem = b.problem()
    state = problem.graph.ops[0].replay
    assert state is not None
    plan = Plan((OpId(0), OpId(1), OpId(0), OpId(2)), 2, (Transfer(state, 1, 2),))
    assert Rule.TRANSFER_KIND in {v.rule for v in verify(problem, plan)}


def test_a_chosen_candidate_keeps_its_transfers_and_is_judged_with_them() -> None:
    problem, plan = small()
    moved = replace(plan, transfers=(Transfer(StorageId(1), 2, 5),))
    peak = simulate(problem.graph, problem.costs, plan).peak_bytes
    chosen = choose(replace(problem, budget_bytes=peak - 1), "made up", [Candidate(plan), Candidate(moved)])
    assert chosen.plan == moved
    assert chosen.peak_bytes == simulate(problem.graph, problem.costs, moved).peak_bytes < peak


def test_transfers_keep_their_place_where_the_interlude_is_taken_out() -> None:
    problem = with_tiers(chain(4))
    position = next(op.id for op in problem.graph.ops if op.phase is Phase.BACKWARD)
    around = with_interlude(problem, OpId(position), 100)
    steps = Plan.saving_all(around.graph)
    stood = steps.steps.index(position)
    storage = around.graph.ops[0].writes[0]
    last = max(i for i, op in enumerate(steps.steps) if storage in around.graph.ops[op].reads)
    for transfer, expected in [
        (Transfer(storage, stood, last), [Transfer(storage, stood, last - 1)]),
        (Transfer(storage, stood - 1, stood), [Transfer(storage, stood - 1, stood)]),
        (Transfer(storage, stood + 1, last), [Transfer(storage, stood, last - 1)]),
        (Transfer(storage, stood, stood + 1), []),
    ]:
        inside = replace(steps, transfers=(transfer,))
        outside = without_interlude(inside, OpId(position))
        assert list(outside.transfers) == expected
        if not verify(around, inside):
            assert not [v for v in verify(problem, outside) if v.rule is not Rule.BUDGET]


def test_what_is_away_leaves_room_for_the_interlude() -> None:
    """A planner that moves what the first operator made is believed, and its answer holds beside the interlude."""
    problem, plan = small()
    between_bytes = 100

    def moving(asked: RematProblem) -> object:
        steps = Plan.saving_all(asked.graph)
        return choose(asked, "moving", [Candidate(replace(steps, transfers=(Transfer(StorageId(1), 2, 6),)))])

    result = planned_around(replace(problem, budget_bytes=31 + between_bytes), between_bytes, moving)  # type: ignore[arg-type]
    assert result.plan == replace(plan, transfers=(Transfer(StorageId(1), 2, 5),))
    assert simulate(problem.graph, problem.costs, result.plan).saved_bytes + between_bytes <= 31 + between_bytes
