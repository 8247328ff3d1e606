"""Random programs whose backward runs in another order: bit for bit as in eager, at the predicted peak."""

from __future__ import annotations

from random import Random

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st

from orders.reordered import order_backward
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.orders.order_backward import freedom_of
from remat_passes.orders.tasks import tasks_of
from remat_passes.sequences.profile import arrays_of
from rewrite.planned_step import UNLIMITED, PlannedStep, run_step
from rewrite.programs import Program, ProgramModule, inputs_of, programs, returns_an_input
from rewrite.random_plans import random_plan
from rewrite.test_random_programs import check_peak


def shuffled(problem: RematProblem, plan: Plan, random: Random) -> Plan:
    """`plan` with its backward in a random order of those that `order_backward` may choose from."""
    steps = np.array(plan.steps, np.int64)
    tasks = tasks_of(arrays_of(problem), freedom_of(problem.graph), steps, plan.boundary)
    count = len(tasks.own)
    needs: list[set[int]] = [set() for _ in range(count)]
    for later, earlier in zip(tasks.later.tolist(), tasks.earlier.tolist()):
        needs[later].add(earlier)
    for p in np.flatnonzero(tasks.fixed).tolist():
        needs[p].update(range(p))
        for k in range(p + 1, count):
            needs[k].add(p)
    order: list[int] = []
    while len(order) < count:
        order.append(random.choice([k for k in range(count) if k not in order and needs[k] <= set(order)]))
    return Plan((*plan.steps[: plan.boundary], *(OpId(int(steps[plan.boundary + k])) for k in order)), plan.boundary)


@settings(
    max_examples=40,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(program=programs(), seed=st.integers(0, 2**16))
def test_every_order_equals_eager(program: Program, seed: int) -> None:
    torch.manual_seed(seed)
    module, inputs = ProgramModule(program), inputs_of(program, seed)
    assume(not returns_an_input(program))
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    try:
        eager = run_step(module, module, inputs, buffers)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error) and "does not require grad" not in str(error):
            raise
        reject()
    step = PlannedStep(module, inputs)
    assume(step.needs_backward)
    problem = RematProblem(step.captured.graph, step.costs, UNLIMITED)
    for number in range(3):
        plan = random_plan(problem.graph, Random(seed + number))
        for other in (order_backward(problem, plan), shuffled(problem, plan, Random(seed))):
            timeline = step.use(other)
            assert run_step(module, step.call, inputs, buffers).differences(eager) == []
            if not number and plan.boundary < len(plan.steps) and step.tangents_are(module(*inputs)):
                check_peak(step, module, inputs, timeline, True)
