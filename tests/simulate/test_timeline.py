"""The simulator against the verifier, and both against graphs worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, generators, problems, random_steps, with_budget
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify

IGNORING_TAGS = {Rule.SAVED, Rule.MUST_SAVE}
"""Random plans do not heed the user's tags."""


def plan(steps: Sequence[int], boundary: int) -> Plan:
    return Plan(tuple(map(OpId, steps)), boundary)


@settings(max_examples=600)
@given(problem=problems(), rng=generators(), repeats=st.integers(0, 30))
def test_simulator_and_verifier_agree(problem: RematProblem, rng: Random, repeats: int) -> None:
    steps = random_steps(rng, problem, repeats)
    timeline = simulate(problem.graph, problem.costs, steps)
    assert [v for v in verify(problem, steps, timeline.peak_bytes) if v.rule not in IGNORING_TAGS] == []
    assert timeline.time_ns == sum(problem.costs.time_ns[i] for i in steps.steps)
    assert timeline.added_ns == timeline.time_ns - problem.costs.step_ns
    if steps.steps:
        assert timeline.live_bytes.max() == timeline.live_bytes[timeline.peak_step] == timeline.peak_bytes
        sizes = [problem.graph.storages[s].size_bytes for s in timeline.live_at(timeline.peak_step)]
        tangents = sum(s.size_bytes for s in problem.graph.storages if s.kind is StorageKind.TANGENT)
        due = tangents if timeline.peak_step >= steps.boundary else 0
        op = problem.graph.ops[steps.steps[timeline.peak_step]]
        returned = op.replay is not None and op.id in steps.steps[: timeline.peak_step]
        state = problem.graph.storages[op.replay].size_bytes if returned and op.replay is not None else 0
        assert sum(sizes) + due + state + problem.costs.workspace_bytes[op.id] == timeline.peak_bytes


def small() -> RematProblem:
    """f0 (10 bytes) -> f1 (20) -> f2 (kept, 1); b3 reads the tangent (5), f1 and f0, makes a gradient of 7."""
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    first = b.forward([x], 10, time=3)
    second = b.forward([first], 20, time=4, workspace=100)
    b.run(Phase.FORWARD, [second], [(1, StorageKind.OUTPUT)], time=5)
    tangent = b.storage(5, StorageKind.TANGENT)
    b.run(Phase.BACKWARD, [tangent, first, second], [(7, StorageKind.GRADIENT)], time=6)
    return b.problem()


def live(problem: RematProblem, steps: Plan) -> list[int]:
    return [int(v) for v in simulate(problem.graph, problem.costs, steps).live_bytes]


def test_everything_saved() -> None:
    problem = small()
    timeline = simulate(problem.graph, problem.costs, plan([0, 1, 2, 3], 3))
    assert timeline.live_bytes.tolist() == [10, 10 + 20 + 100, 10 + 20 + 1, 10 + 20 + 1 + 5 + 7]
    assert (timeline.peak_bytes, timeline.peak_step, timeline.saved_bytes) == (130, 1, 31)
    assert (timeline.time_ns, timeline.added_ns) == (18, 0)
    assert timeline.live_at(2) == [1, 2, 3]


def test_recomputed_value_is_freed_between() -> None:
    problem = small()
    timeline = simulate(problem.graph, problem.costs, plan([0, 1, 2, 1, 3], 3))
    assert timeline.live_bytes.tolist() == [10, 130, 31, 10 + 1 + 5 + 20 + 100, 10 + 20 + 1 + 5 + 7]
    assert timeline.saved_bytes == 11
    assert timeline.added_ns == 4


def test_first_instance_of_a_kept_storage_serves_all_reads() -> None:
    b = ProblemBuilder()
    x = b.storage(9, StorageKind.INPUT)
    out, other = b.run(Phase.FORWARD, [x], [(100, StorageKind.OUTPUT), (10, StorageKind.ACTIVATION)])
    tangent = b.storage(0, StorageKind.TANGENT)
    b.backward([tangent, other], 1)
    b.backward([tangent, out], 1)
    # The repetition makes the output again, which is thrown away at once.
    assert live(b.problem(), plan([0, 0, 1, 2], 1)) == [110, 100 + 110, 100 + 10 + 1, 100 + 1]


def test_random_state_counts_only_when_replayed() -> None:
    b = ProblemBuilder()
    x = b.storage(9, StorageKind.INPUT)
    value = b.run(Phase.FORWARD, [x], [(10, StorageKind.ACTIVATION)], replay_bytes=3)[0]
    b.run(Phase.FORWARD, [value], [(1, StorageKind.OUTPUT)])
    tangent = b.storage(0, StorageKind.TANGENT)
    b.backward([tangent, value], 2)
    assert live(b.problem(), plan([0, 1, 2], 2)) == [10, 11, 13]
    # The repetition holds the state that it replays and the one that it returns to.
    assert live(b.problem(), plan([0, 1, 0, 2], 2)) == [13, 14, 1 + 3 + 3 + 10, 1 + 10 + 2]


def test_result_that_nobody_reads_lives_for_its_step() -> None:
    b = ProblemBuilder()
    x = b.storage(9, StorageKind.INPUT)
    for _ in range(2):
        b.forward([x], 10)
    assert live(b.problem(), plan([0, 1], 2)) == [10, 10]


def test_empty_plan() -> None:
    problem = ProblemBuilder().problem()
    timeline = simulate(problem.graph, problem.costs, plan([], 0))
    assert (timeline.peak_bytes, timeline.time_ns, timeline.saved_bytes) == (0, 0, 0)
    assert verify(problem, plan([], 0), 0) == []


def restricted() -> RematProblem:
    """f0 may run once; f1 (tagged: must not be saved) -> b2, b3 (makes nothing), gradient in b2."""
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    first = b.forward([x], 10, no_recompute="mutates its input")
    second = b.forward([first], 20, save_policy=SavePolicy.MUST_NOT_SAVE)
    tangent = b.storage(5, StorageKind.TANGENT)
    b.run(Phase.BACKWARD, [tangent, second], [(7, StorageKind.GRADIENT)])
    b.run(Phase.BACKWARD, [tangent], [])
    return b.problem()


GOOD = plan([0, 1, 1, 2, 3], 2)


def test_good_plan_passes() -> None:
    assert verify(restricted(), GOOD, 10 + 20 + 5) == []


@pytest.mark.parametrize(
    ("bad", "rule", "step"),
    [
        (plan([0, 1, 1, 2, 3, 4], 2), Rule.UNKNOWN_OP, 5),
        (plan([0, 1, 1, 2, -1], 2), Rule.UNKNOWN_OP, 4),
        (plan([0, 1, 1, 2, 3], 6), Rule.BOUNDARY, 6),
        (plan([0, 1, 1, 2, 3], -1), Rule.BOUNDARY, -1),
        (plan([0, 1, 2, 3], 3), Rule.PHASE, 2),
        (plan([0, 1, 2, 3], 1), Rule.FORWARD_MISSING, 1),
        (plan([0], 1), Rule.FORWARD_MISSING, 1),
        (plan([1, 0, 1, 2, 3], 2), Rule.NOT_MADE, 0),
        (plan([0, 1, 0, 1, 2, 3], 2), Rule.RECOMPUTE, 2),
        (plan([0, 1, 3], 2), Rule.MISSING_OUTPUT, 3),
        (plan([0, 1, 1, 2], 2), Rule.MISSING_OUTPUT, 4),
        (plan([0, 1, 2, 3], 2), Rule.SAVED, 2),
    ],
)
def test_each_rule_finds_a_plan_that_breaks_it(bad: Plan, rule: Rule, step: int) -> None:
    found = verify(restricted(), bad)
    assert (rule, step) in [(v.rule, v.step) for v in found], found
    assert all(v.detail for v in found)


def test_budget_and_claim() -> None:
    peak = simulate(small().graph, small().costs, plan([0, 1, 2, 3], 3)).peak_bytes
    problem = with_budget(small(), peak - 1)
    found = verify(problem, plan([0, 1, 2, 3], 3), peak + 1)
    assert [(v.rule, v.step) for v in found] == [(Rule.BUDGET, 1), (Rule.CLAIM, 1)]
    assert str(found[0]) == f"step 1: the peak exceeds the budget ({peak} bytes, budget {peak - 1})"


def test_missing_gradient_with_tangent_read_too_early() -> None:
    found = verify(small(), plan([0, 1, 2], 3))
    assert [v.rule for v in found] == [Rule.MISSING_OUTPUT]
