"""The schedule of a plan: the same times as the simulator's, with each wait where it happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import generators, problems, random_steps
from moving_problems import moving_problem
from remat_compiler.ir.plan import Tier
from remat_compiler.ir.problem import Link, RematProblem
from remat_compiler.simulate.schedule import schedule
from remat_compiler.simulate.timeline import simulate
from transfers_at_random import with_random_transfers


@given(problem=problems(), rng=generators(), repeats=st.integers(0, 20))
def test_without_transfers_steps_follow_each_other(problem: RematProblem, rng: Random, repeats: int) -> None:
    plan = random_steps(rng, problem, repeats)
    times = schedule(problem.graph, problem.costs, plan)
    assert times.total_ns == simulate(problem.graph, problem.costs, plan).time_ns
    at_ns = 0
    for op, step in zip(plan.steps, times.steps, strict=True):
        assert (step.waits_from_ns, step.begin_ns) == (at_ns, at_ns)
        at_ns = step.end_ns
        assert at_ns - step.begin_ns == problem.costs.time_ns[op]
    assert at_ns == times.total_ns


@settings(max_examples=200)
@given(rng=generators(), share=st.floats(0.1, 1))
def test_waits_add_up_and_nothing_is_used_before_it_is_back(rng: Random, share: float) -> None:
    problem = moving_problem(rng)
    links = (*problem.costs.links, Link(Tier.DISK, 10**7, 10**8, 3))
    problem = replace(problem, costs=replace(problem.costs, links=links))
    plan = with_random_transfers(problem.graph, random_steps(rng, problem, 10), rng, share)
    times, simulated = (of(problem.graph, problem.costs, plan) for of in (schedule, simulate))
    waits_ns = sum(step.begin_ns - step.waits_from_ns for step in times.steps)
    assert waits_ns == simulated.stall_ns
    assert times.total_ns == simulated.time_ns
    assert (times.steps[-1].end_ns if times.steps else 0) + times.drag_ns == times.total_ns
    assert all(after.waits_from_ns == before.end_ns for before, after in pairwise(times.steps))
    for i, (one, life, copies) in enumerate(zip(plan.transfers, times.lives, times.copies, strict=True)):
        # Later transfers of the same instance copy nothing out.
        assert life.first != i or copies.out_begin_ns >= times.steps[life.begun].end_ns
        assert copies.out_end_ns <= times.steps[one.out_after].begin_ns
        assert copies.back_begin_ns >= times.steps[one.back_before].waits_from_ns
        assert copies.back_end_ns <= times.steps[life.read].begin_ns
