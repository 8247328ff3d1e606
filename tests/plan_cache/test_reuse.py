"""Which cached plans may be taken: verified for the problem at hand, and about as good as a new one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.plan_cache.key import CachedPlan, CacheQuery, PlanCacheKey
from remat_compiler.plan_cache.reuse import TOLERANCE, judge_same, judge_similar, wasted_ns
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.registry import make_planner
from scaled import everything_once, step

PLANNER = make_planner("auto", effort=500, time_limit=0.0)
KEY = PlanCacheKey("", "", 0, 0, 0, None, "auto", "", "", "")


def entry(problem: RematProblem, result: PlanResult) -> CachedPlan:
    return CachedPlan(CacheQuery(KEY, "", 0), "", problem.costs.step_ns, 0, result)


def solved(problem: RematProblem) -> CachedPlan:
    return entry(problem, PLANNER.plan(problem))


@cache
def many_blocks(budget: float = 0.6) -> CachedPlan:
    return solved(step(100, budget, blocks=20))


def plan_of(one: CachedPlan) -> Plan:
    assert one.result.plan is not None
    return one.result.plan


def test_the_plan_of_the_same_problem_is_taken_as_it_is() -> None:
    problem = step()
    known = solved(problem)
    assert judge_same(problem, known).result is known.result
    below = replace(problem, budget_bytes=1)
    refused = solved(below)
    assert refused.result.status is PlanStatus.INFEASIBLE
    assert judge_same(below, refused).result is refused.result


PROBLEM = step()
KNOWN = solved(PROBLEM)
CHANGED = {
    "no plan": {"plan": None},
    "a peak that is not so": {"peak_bytes": KNOWN.result.peak_bytes - 1},
    "an added time that is not so": {"added_ns": KNOWN.result.added_ns - 1},
    "a time that is not so": {"time_ns": KNOWN.result.time_ns + 1},
    "no plan that fits": {"status": PlanStatus.INFEASIBLE},
    "a plan that does not fit": {"plan": everything_once(PROBLEM)},
    "a step too few": {"plan": replace(plan_of(KNOWN), steps=plan_of(KNOWN).steps[:-1])},
    "no such operator": {"plan": replace(plan_of(KNOWN), steps=(*plan_of(KNOWN).steps, OpId(10**6)))},
    "a negative operator": {"plan": replace(plan_of(KNOWN), steps=(OpId(-1), *plan_of(KNOWN).steps))},
    "a boundary outside": {"plan": replace(plan_of(KNOWN), boundary=10**6)},
    "another boundary": {"plan": replace(plan_of(KNOWN), boundary=plan_of(KNOWN).boundary - 1)},
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_changed_entry_is_refused_with_the_reason(how: str) -> None:
    changed = entry(PROBLEM, replace(KNOWN.result, **CHANGED[how]))  # type: ignore[arg-type]
    judged = judge_same(PROBLEM, changed)
    assert judged.result is None
    assert judged.refusal


@pytest.mark.parametrize("how", ["no plan", "no such operator", "a negative operator", "a boundary outside"])
def test_a_changed_entry_of_another_size_is_refused_too(how: str) -> None:
    changed = entry(PROBLEM, replace(KNOWN.result, **CHANGED[how]))  # type: ignore[arg-type]
    assert judge_similar(step(99), changed).result is None


@pytest.mark.parametrize("percent", [85, 94, 98, 99, 101, 105])
@pytest.mark.parametrize("budget", [0.45, 0.6, 0.8])
def test_what_is_taken_for_another_size_fits_and_says_what_it_costs_there(percent: int, budget: float) -> None:
    """What is taken is valid at its own size, of the figures that it claims, and not far from a new plan."""
    here = step(percent, budget, blocks=20)
    judged = judge_similar(here, many_blocks(budget))
    if judged.result is None:
        assert judged.refusal
        return
    result = judged.result
    assert result.plan is not None
    assert verify(here, result.plan, result.peak_bytes) == []
    timeline = simulate(here.graph, here.costs, result.plan)
    assert (result.time_ns, result.added_ns) == (timeline.time_ns, timeline.added_ns)
    assert (result.status, result.lower_bound_ns) == (PlanStatus.FEASIBLE, 0)
    assert result.added_ns - PLANNER.plan(here).added_ns <= 2 * TOLERANCE * here.costs.step_ns


def test_some_sizes_are_taken_and_others_refused_for_each_reason() -> None:
    known = many_blocks()
    reasons = {percent: judge_similar(step(percent, blocks=20), known).refusal for percent in (50, 70, 98, 99, 115)}
    assert "budget" in reasons[115]
    assert reasons[99] == ""
    assert "recomputes too much" in reasons[70]
    assert "recomputes too much" in reasons[50]


def test_the_limit_of_added_time_holds_for_other_sizes() -> None:
    known = many_blocks()
    here = step(99, blocks=20)
    taken = judge_similar(here, known).result
    assert taken is not None
    assert judge_similar(replace(here, max_added_ns=taken.added_ns), known).result == taken
    refusal = judge_similar(replace(here, max_added_ns=taken.added_ns - 1), known).refusal
    assert f"{taken.added_ns - 1} ns are allowed" in refusal


def test_a_plan_that_costs_more_here_than_where_it_was_solved_is_refused() -> None:
    known = many_blocks()
    cheaper = replace(known, result=replace(known.result, added_ns=0))
    assert "where it was solved" in judge_similar(step(99, blocks=20), cheaper).refusal


def test_a_plan_that_did_not_fit_its_own_size_is_no_candidate() -> None:
    small = replace(step(100), budget_bytes=1)
    assert judge_similar(step(), solved(small)).refusal == "it did not fit its own size"


def test_all_is_wasted_where_the_step_fits_and_nothing_where_no_byte_is_left() -> None:
    problem = step()
    plan = plan_of(solved(problem))
    timeline = simulate(problem.graph, problem.costs, plan)
    peak = simulate(problem.graph, problem.costs, Plan.saving_all(problem.graph)).peak_bytes
    assert timeline.added_ns > 0
    assert wasted_ns(replace(problem, budget_bytes=peak), timeline) == timeline.added_ns
    assert wasted_ns(replace(problem, budget_bytes=timeline.peak_bytes), timeline) == 0
    rising = [wasted_ns(replace(problem, budget_bytes=b), timeline) for b in range(timeline.peak_bytes, peak, 10_000)]
    assert rising == sorted(rising)
    assert max(rising) <= timeline.added_ns


def test_the_plan_that_saves_all_is_valid() -> None:
    problem = replace(step(), budget_bytes=1 << 60)
    assert verify(problem, Plan.saving_all(problem.graph)) == []
