"""The planner `auto`: quality against brute force, promises about budgets, and the things that restrict it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings

from brute_force import cheapest_added_ns
from builders import (
    LIBRARY,
    ProblemBuilder,
    chain,
    encoder_decoder,
    generators,
    pinned_outputs,
    random_problem,
    residual,
    user_regions,
    with_budget,
)
from moving_problems import moving_problem
from remat_compiler.ir.graph import Phase, StorageId, StorageKind
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.verify import verify
from remat_passes.planning import auto
from remat_passes.planning.auto import Auto
from remat_passes.planning.chen_sqrt import ChenSqrt
from remat_passes.planning.save_all import SaveAll

QUICK = Auto(effort=500, time_limit=0.0)


def all_saved(problem: RematProblem) -> int:
    return SaveAll().plan(problem).peak_bytes


def tiny_chain(seed: int) -> RematProblem:
    """Five layers of uneven sizes and times."""
    draw, b = Random(seed), ProblemBuilder()
    values = [b.storage(10, StorageKind.INPUT)]
    for _ in range(5):
        values.append(b.forward([values[-1]], draw.randint(5, 20), time=draw.randint(1, 9)))
    grad = b.storage(8, StorageKind.TANGENT)
    for value in reversed(values[1:]):
        grad = b.backward([grad, value], 8)
    return b.problem()


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_brute_force_on_tiny_chains(seed: int) -> None:
    problem = tiny_chain(seed)
    high, low = all_saved(problem), QUICK.smallest_peak(problem).peak_bytes
    for budget in {high - 1, (high + low) // 2}:
        best = cheapest_added_ns(with_budget(problem, budget), most_repeats=3)
        found = QUICK.plan(with_budget(problem, budget))
        if best is not None:
            assert found.status is PlanStatus.FEASIBLE
            assert found.added_ns == best


def test_one_value_is_recomputed_several_times_where_memory_is_short() -> None:
    problem = chain(length=32)
    result = Auto().smallest_peak(problem)
    assert result.plan is not None
    assert max(result.plan.steps.count(op) for op in result.plan.steps) > 3
    assert result.peak_bytes < ChenSqrt().plan(with_budget(problem, 0)).peak_bytes


def test_what_fits_is_left_alone() -> None:
    problem = residual()
    result = Auto().plan(problem)
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns == 0
    reference = SaveAll().plan(problem).plan
    assert Auto().plan(replace(problem, reference=reference)).plan == reference


@pytest.mark.parametrize("name", ["chain", "residual", "encoder_decoder", "user_regions", "pinned_outputs"])
def test_frontier_is_monotone(name: str) -> None:
    problem = LIBRARY[name]
    high, low = all_saved(problem), QUICK.smallest_peak(problem).peak_bytes
    budgets = [low - 1, *(low + (high - low) * i // 6 for i in range(7))]
    results = QUICK.frontier(problem, budgets)
    for budget, result in zip(budgets, results):
        assert result.plan is not None
        assert [v for v in verify(with_budget(problem, budget), result.plan) if v.rule is not Rule.BUDGET] == []
    for smaller, larger in pairwise(results[1:]):
        assert smaller.peak_bytes <= larger.peak_bytes
        assert smaller.added_ns >= larger.added_ns
    assert results[-1].added_ns <= min(result.added_ns for result in results)


@pytest.mark.parametrize("name", ["chain", "residual", "encoder_decoder", "pinned_outputs"])
def test_smallest_peak_can_be_asked_for(name: str) -> None:
    problem = LIBRARY[name]
    lowest = QUICK.smallest_peak(problem)
    assert QUICK.plan(with_budget(problem, lowest.peak_bytes)).status is PlanStatus.FEASIBLE
    hopeless = QUICK.plan(with_budget(problem, 0))
    assert hopeless.status is PlanStatus.INFEASIBLE
    assert hopeless.peak_bytes == lowest.peak_bytes


@pytest.mark.parametrize("moves", [False, True])
@settings(max_examples=30)
@given(rng=generators())
def test_a_refusal_is_the_answer_to_smaller_budgets_too(moves: bool, rng: Random) -> None:
    problem = moving_problem(rng) if moves else random_problem(rng)
    lowest = QUICK.smallest_peak(problem)
    # The highest budget that is refused, if any above the first byte is.
    refused = QUICK.plan(with_budget(problem, lowest.peak_bytes - 1))
    assert QUICK.refuses_smaller_alike
    if refused.status is PlanStatus.INFEASIBLE:
        for budget in (NO_BYTES, lowest.peak_bytes // 2):
            assert QUICK.plan(with_budget(problem, budget)) == refused


@pytest.mark.parametrize("percent", [0, 5, 20])
def test_no_plan_exceeds_the_time_limit(percent: int) -> None:
    problem = encoder_decoder()
    limited = replace(problem, max_added_ns=problem.costs.step_ns * percent // 100)
    free = QUICK.smallest_peak(problem)
    lowest = QUICK.smallest_peak(limited)
    assert lowest.added_ns <= problem.costs.step_ns * percent // 100
    assert free.peak_bytes <= lowest.peak_bytes <= all_saved(problem)
    if percent == 20:
        assert lowest.peak_bytes < all_saved(problem)
    found = QUICK.plan(replace(limited, budget_bytes=free.peak_bytes))
    assert found.added_ns <= problem.costs.step_ns * percent // 100


def test_pinned_operators_never_repeat() -> None:
    problem = pinned_outputs()
    result = QUICK.smallest_peak(problem)
    assert result.plan is not None
    for op in problem.graph.ops:
        if not op.may_recompute:
            assert result.plan.steps.count(op.id) == 1
    assert result.peak_bytes < all_saved(problem)


def test_user_regions_are_kept_at_every_budget() -> None:
    problem = user_regions()
    for fraction in (0.0, 0.6, 0.9, 1.5):
        asked = with_budget(problem, int(fraction * all_saved(problem)))
        result = QUICK.plan(asked)
        assert result.plan is not None
        assert {v.rule for v in verify(asked, result.plan)} <= {Rule.BUDGET}


def test_state_of_random_operators_is_counted() -> None:
    problem = residual()
    dropouts = [op.id for op in problem.graph.ops if op.replay is not None]
    budget = (all_saved(problem) + QUICK.smallest_peak(problem).peak_bytes) // 2
    result = QUICK.plan(with_budget(problem, budget))
    assert result.plan is not None
    assert any(result.plan.steps.count(op) > 1 for op in dropouts)
    assert verify(with_budget(problem, budget), result.plan, result.peak_bytes) == []


def test_tangent_free_operators_move_to_the_forward_where_that_saves_bytes() -> None:
    b = ProblemBuilder()
    x = b.storage(100, StorageKind.INPUT)
    pairs: list[tuple[StorageId, StorageId]] = []
    for _ in range(6):
        x = b.forward([x], 100, time=1000)
        pairs.append((x, b.run(Phase.TANGENT_FREE, [x], [(10, StorageKind.TEMPORARY)])[0]))
    x = b.forward([x], 10)
    grad = b.storage(10, StorageKind.TANGENT)
    for _, mask in reversed(pairs):
        grad = b.backward([grad, mask], 10)
    result = Auto().plan(b.problem(300))
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_below_their_peak(seed: int) -> None:
    problem = random_problem(Random(seed), forwards=40, backwards=40)
    for fraction in (0.3, 0.6, 0.8):
        asked = with_budget(problem, int(fraction * all_saved(problem)))
        result = QUICK.plan(asked)
        assert result.plan is not None
        assert {v.rule for v in verify(asked, result.plan, result.peak_bytes)} <= {Rule.BUDGET}


def test_same_plan_in_another_process() -> None:
    asked = with_budget(residual(), all_saved(residual()) // 2)
    program = (
        "from builders import residual, with_budget\n"
        "from remat_passes.planning.auto import Auto\n"
        "from remat_compiler.ir.json_form import dumps\n"
        f"print(dumps(Auto(effort=500, time_limit=0.2).plan(with_budget(residual(), {asked.budget_bytes}))), end='')\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout == dumps(Auto(effort=500, time_limit=0.2).plan(asked))


def test_a_quick_plan_searches_for_no_smallest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this takes long")

    monkeypatch.setattr(auto, "lowest_peak", refuse)
    monkeypatch.setattr(auto, "tight_seeds", refuse)
    quick = Auto(effort=2_000, time_limit=0.0, thorough=False)
    for seed in range(6):
        problem = chain() if seed == 0 else random_problem(Random(seed))
        high = all_saved(problem)
        lowest = quick.smallest_peak(problem)
        for budget in (1, lowest.peak_bytes, (lowest.peak_bytes + high) // 2, high):
            asked = with_budget(problem, budget)
            found = quick.plan(asked)
            assert found.plan is not None
            assert {v.rule for v in verify(asked, found.plan, found.peak_bytes)} <= {Rule.BUDGET}
            assert found.peak_bytes <= (high if budget < lowest.peak_bytes else budget)
