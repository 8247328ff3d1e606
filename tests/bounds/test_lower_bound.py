"""No plan beats a bound: not a random one, not a planner's, not the cheapest of all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from brute_force import cheapest_added_ns
from builders import (
    LIBRARY,
    chain,
    generators,
    problems,
    random_problem,
    random_steps,
    untagged,
    with_budget,
    with_tiers,
)
from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus, Tier
from remat_compiler.ir.problem import Link, RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.transfers import moved_bytes
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.lower_bound import THOROUGH, BoundEffort, lower_bound_ns, with_bound, without_transfers
from remat_passes.bounds.network import network_of
from remat_passes.bounds.relaxed import relax
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner, planner_names
from transfers_at_random import possible_transfers, with_random_transfers

EVERY_INSTANT = BoundEffort(instants=1_000)
FRACTIONS = (0.3, 0.5, 0.7, 0.85, 0.95)
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much)


def keeps_order(problem: RematProblem, plan: Plan, phases: tuple[Phase, ...]) -> bool:
    """Whether operators of each of `phases` first run in the graph's order."""
    first = list(dict.fromkeys(plan.steps))
    return all(part == sorted(part) for p in phases for part in [[i for i in first if problem.graph.ops[i].phase is p]])


def class_of(problem: RematProblem, plan: Plan) -> OrderClass:
    """The narrowest class that `plan` belongs to."""
    if keeps_order(problem, plan, (Phase.FORWARD, Phase.BACKWARD)):
        return OrderClass.JOINT
    return OrderClass.ANY_BACKWARD if keeps_order(problem, plan, (Phase.FORWARD,)) else OrderClass.ANY


def random_order(rng: Random, problem: RematProblem) -> Plan:
    """A plan with first executions in any order that their reads allow, and a few repeats."""
    ops, producers = problem.graph.ops, problem.graph.producers()
    steps: list[OpId] = []
    made: set[OpId] = set()
    boundary = 0
    for part in ((Phase.FORWARD,), (Phase.TANGENT_FREE, Phase.BACKWARD)):
        left = [op for op in ops if op.phase in part]
        if part == (Phase.FORWARD,):
            left += [op for op in ops if op.phase is Phase.TANGENT_FREE and rng.random() < 0.5]
        left = [op for op in left if op.id not in made]
        while ready := [op for op in left if all(producers[s] is None or producers[s] in made for s in op.reads)]:
            op = rng.choice(ready)
            left.remove(op)
            steps.append(op.id)
            made.add(op.id)
            again = ops[rng.choice(steps)]
            if rng.random() < 0.3 and again.may_recompute:
                steps.append(again.id)
        boundary = len(steps) if part == (Phase.FORWARD,) else boundary
    return Plan(tuple(steps), boundary)


def check_bounds(problem: RematProblem, plan: Plan, added_ns: int) -> None:
    """Every instant's bound of the plan's class, and of all wider ones, allows the plan; wider ones are no higher."""
    graph = StepGraph.of(problem)
    classes = list(OrderClass)[list(OrderClass).index(class_of(problem, plan)) :]
    for op in problem.graph.ops:
        if not graph.live[op.id] or op.phase is Phase.TANGENT_FREE:
            continue
        bounds = []
        for order in classes:
            instant = Instant.of(graph, op.id, order)
            found = relax(network_of(graph, instant), problem.budget_bytes - instant.held_bytes)
            assert found.feasible, f"{order} {op.name}: a plan is there, yet no way through its instant"
            bounds.append(found.bound_ns)
        assert bounds[0] <= added_ns, f"{classes[0]} {op.name}"
        assert bounds == sorted(bounds, reverse=True)


@settings(max_examples=150, suppress_health_check=SLOW)
@given(rng=generators(), reorder=st.booleans())
def test_random_plans(rng: Random, reorder: bool) -> None:
    """At its own peak as the budget, a plan of random repeats, those of the backward included."""
    problem = random_problem(rng, rng.randint(1, 9), rng.randint(1, 9))
    plan = random_order(rng, problem) if reorder else random_steps(rng, problem, rng.randint(1, 6))
    timeline = simulate(problem.graph, problem.costs, plan)
    problem = with_budget(problem, timeline.peak_bytes)
    assume(verify(problem, plan) == [])
    check_bounds(problem, plan, timeline.added_ns)


@settings(max_examples=150, suppress_health_check=SLOW)
@given(rng=generators())
def test_random_plans_that_move_values(rng: Random) -> None:
    """At its own peak as the budget, with room for just what it moves: no bound may rule it out."""
    problem = with_tiers(random_problem(rng, rng.randint(1, 9), rng.randint(1, 9)))
    speed = rng.choice((10**8, 10**9, 10**10, 10**18))
    slow = tuple(replace(link, out_bytes_per_s=speed, back_bytes_per_s=2 * speed) for link in problem.costs.links)
    problem = replace(problem, costs=replace(problem.costs, links=slow))
    plan = random_steps(rng, problem, rng.randint(1, 6))
    plan = with_random_transfers(problem.graph, plan, rng, share=0.6)
    timeline = simulate(problem.graph, problem.costs, plan)
    room = moved_bytes(problem.graph, plan)
    problem = replace(with_budget(problem, timeline.peak_bytes), offload_bytes=room)
    assume(verify(problem, plan) == [])
    claimed = PlanResult(PlanStatus.FEASIBLE, "random", plan, timeline.peak_bytes, timeline.time_ns, timeline.added_ns)
    bounded = with_bound(claimed, problem)
    assert bounded.lower_bound_ns <= timeline.added_ns
    if room:
        assert not lower_bound_ns(without_transfers(problem, timeline.added_ns)).infeasible


def test_what_is_off_at_once_was_copied_out_and_is_copied_back_within_the_step() -> None:
    """At 1 byte out and 3 back in a nanosecond, 3 bytes take 4 ns, from the memory that is freed to its return."""
    problem = chain(12)
    links = (Link(Tier.HOST, 10**9, 3 * 10**9),)
    problem = replace(problem, offload_bytes=1 << 40, costs=replace(problem.costs, links=links))
    time_ns = problem.costs.step_ns + 100
    more = without_transfers(problem, 100).budget_bytes - problem.budget_bytes
    # Whole nanoseconds may hide one of each copy.
    assert 3 * time_ns / 4 <= more <= 3 * (time_ns + 2 * len(problem.graph.storages)) / 4 + 1
    assert without_transfers(replace(problem, offload_bytes=5), 100).budget_bytes == problem.budget_bytes + 5


def test_what_a_slow_link_moves_bounds_what_need_not_be_recomputed() -> None:
    """Room for everything, at speeds at which almost nothing of it can be used."""
    problem = chain(12)
    problem = with_budget(problem, int(0.5 * SaveAll().plan(problem).peak_bytes))
    alone = with_bound(Auto().plan(problem), problem)
    assert alone.lower_bound_ns > 0
    bounds = []
    for speed in (1, 10**3, 10**15):
        links = (Link(Tier.HOST, speed, speed),)
        moving = replace(problem, offload_bytes=1 << 40, costs=replace(problem.costs, links=links))
        bounds.append(with_bound(replace(alone, lower_bound_ns=0), moving).lower_bound_ns)
    assert bounds[0] == alone.lower_bound_ns
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[2] == 0


def test_the_bound_of_recomputation_does_not_bound_plans_that_move_values() -> None:
    problem = with_tiers(chain(12))
    slow = tuple(replace(link, latency_ns=1) for link in problem.costs.links)
    problem = replace(problem, costs=replace(problem.costs, links=slow))
    steps = Plan.saving_all(problem.graph)
    longest = {one.storage: one for one in possible_transfers(problem.graph, steps)}
    plan = replace(steps, transfers=tuple(longest.values()))
    timeline = simulate(problem.graph, problem.costs, plan)
    problem = replace(with_budget(problem, timeline.peak_bytes), offload_bytes=moved_bytes(problem.graph, plan))
    assert 0 < timeline.added_ns < lower_bound_ns(replace(problem, offload_bytes=0)).bound_ns
    claimed = PlanResult(PlanStatus.FEASIBLE, "all", plan, timeline.peak_bytes, timeline.time_ns, timeline.added_ns)
    assert with_bound(claimed, problem).lower_bound_ns <= timeline.added_ns


@pytest.mark.parametrize("name", planner_names())
@settings(max_examples=25, suppress_health_check=SLOW)
@given(problem=problems(), fraction=st.sampled_from(FRACTIONS))
def test_planners(name: str, problem: RematProblem, fraction: float) -> None:
    asked = with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))
    result = make_planner(name, effort=500).plan(asked)
    fits = result.plan is not None and result.peak_bytes <= asked.budget_bytes
    bound = lower_bound_ns(asked, EVERY_INSTANT)
    if result.plan is not None and fits:
        assert not bound.infeasible
        assert bound.bound_ns <= result.added_ns
        check_bounds(asked, result.plan, result.added_ns)


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_plan(seed: int) -> None:
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 5), rng.randint(2, 4)))
    peak = SaveAll().plan(problem).peak_bytes
    for fraction in (0.6, 0.75, 0.9):
        asked = with_budget(problem, int(fraction * peak))
        cheapest = cheapest_added_ns(asked, most_repeats=2)
        bound = lower_bound_ns(asked, EVERY_INSTANT, OrderClass.JOINT)
        if cheapest is not None:
            assert not bound.infeasible
            assert bound.bound_ns <= cheapest


@pytest.mark.parametrize("seed", range(16))
def test_integer_programs_do_not_pass_the_cheapest_plan(seed: int) -> None:
    """All stages on, each class: what holds for more plans is no higher, but for the solver's tolerance."""
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(3, 5), rng.randint(2, 4)))
    asked = with_budget(problem, int(0.75 * SaveAll().plan(problem).peak_bytes))
    cheapest = cheapest_added_ns(asked, most_repeats=2)
    for order in OrderClass:
        bound = lower_bound_ns(asked, THOROUGH, order)
        if cheapest is not None:
            assert not bound.infeasible
            assert lower_bound_ns(asked, EVERY_INSTANT, order).bound_ns <= bound.bound_ns + 1 <= cheapest + 1


@settings(max_examples=40, suppress_health_check=SLOW)
@given(problem=problems(), order=st.sampled_from(OrderClass))
def test_less_memory_never_bounds_lower(problem: RematProblem, order: OrderClass) -> None:
    peak = SaveAll().plan(problem).peak_bytes
    bounds = [
        lower_bound_ns(with_budget(problem, int(f * peak)), EVERY_INSTANT, order) for f in sorted(FRACTIONS)[::-1]
    ]
    reached = [bound.bound_ns for bound in bounds if not bound.infeasible]
    assert reached == sorted(reached)
    assert [bound.infeasible for bound in bounds] == sorted(bound.infeasible for bound in bounds)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_results_with_bounds(name: str) -> None:
    problem = LIBRARY[name]
    peak = SaveAll().plan(problem).peak_bytes
    for fraction in (0.4, 0.7, 1.0):
        asked = with_budget(problem, int(fraction * peak))
        result = Auto().plan(asked)
        bounded = with_bound(result, asked)
        assert 0 <= bounded.lower_bound_ns <= bounded.added_ns
        assert bounded == with_bound(result, asked)
        same = replace(bounded, lower_bound_ns=result.lower_bound_ns, status=result.status)
        assert same == result
        if bounded.status is PlanStatus.OPTIMAL:
            assert bounded.lower_bound_ns == bounded.added_ns
        if result.added_ns == 0:
            assert bounded == result


def test_a_chain_is_bounded_by_what_it_must_drop() -> None:
    """Sixteen equal layers of 10 ns: at 70 % of the peak, at least three of the values must be made again."""
    problem = LIBRARY["chain"]
    asked = with_budget(problem, int(0.7 * SaveAll().plan(problem).peak_bytes))
    bound = lower_bound_ns(asked)
    assert 30 <= bound.bound_ns <= Auto().plan(asked).added_ns
    assert bound.instant is not None


def test_a_budget_below_a_working_set_is_proven_out_of_reach() -> None:
    problem = with_budget(LIBRARY["chain"], 10_000)
    assert lower_bound_ns(problem).infeasible
    result = Auto(effort=500).plan(problem)
    assert result.status is PlanStatus.INFEASIBLE
    assert with_bound(result, problem) == result
