"""Random programs under random plans: everything equals eager bit for bit, and the peak is the predicted one."""

from __future__ import annotations

from collections import Counter
from random import Random

import torch
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st

from instruments.measure import allocator_events, live_bytes
from remat_compiler.simulate.timeline import MemoryTimeline
from rewrite.planned_step import Outcome, PlannedStep, backward, joint_order, run_step
from rewrite.programs import Program, ProgramModule, inputs_of, programs, returns_an_input
from rewrite.random_plans import random_plan
from transfers_at_random import with_random_transfers
from versions import DENSE_GRADIENTS

PROGRAMS = 70
PLANS = 5
MEASURED = 2
"""Plans of each program whose peak is measured; a measurement costs as much as two steps."""
ENOUGH_PAIRS = 300


def test_every_plan_equals_eager() -> None:
    """Too few pairs would mean that the programs are drawn badly."""
    counted: Counter[str] = Counter()
    every_plan_equals_eager(counted)
    print(dict(counted))
    assert counted["pairs"] >= ENOUGH_PAIRS
    assert counted["peaks"] >= ENOUGH_PAIRS // 8


@settings(
    max_examples=PROGRAMS,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(program=programs(), seed=st.integers(0, 2**16), change_in_graph=st.booleans())
def every_plan_equals_eager(counted: Counter[str], program: Program, seed: int, change_in_graph: bool) -> None:
    torch.manual_seed(seed)
    module, inputs = ProgramModule(program), inputs_of(program, seed)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    try:
        eager = run_step(module, module, inputs, buffers)
    except RuntimeError as error:
        # autograd refuses some programs, and those in which nothing needs a gradient
        if "modified by an inplace operation" not in str(error) and "does not require grad" not in str(error):
            raise
        reject()
    step = PlannedStep(module, inputs, change_in_graph=change_in_graph)
    assume(step.needs_backward)
    reference: Outcome | None = None
    for number in range(PLANS):
        plan = random_plan(step.captured.graph, Random(seed + number)) if number else joint_order(step.captured)
        if number % 2:
            plan = with_random_transfers(step.captured.graph, plan, Random(seed + number), share=0.5)
            counted["transfers"] += len(plan.transfers)
        timeline = step.use(plan)
        outcome = run_step(module, step.call, inputs, buffers)
        if returns_an_input(program):
            # The engine adds the gradient of a returned input outside the graph, in another order than in eager.
            assert outcome.close_to(eager)
        else:
            assert outcome.differences(eager) == []
        reference = reference or outcome
        assert outcome.differences(reference) == []
        counted["pairs"] += 1
        if number < MEASURED and plan.boundary < len(plan.steps) and step.tangents_are(module(*inputs)):
            check_peak(step, module, inputs, timeline, change_in_graph)
            counted["peaks"] += 1
    counted["programs"] += 1


def check_peak(
    step: PlannedStep,
    module: ProgramModule,
    inputs: tuple[torch.Tensor, ...],
    timeline: MemoryTimeline,
    change_in_graph: bool,
) -> None:
    """The allocator's peak is the simulator's, to the byte."""

    def train() -> object:
        outputs = step.call(*inputs)
        return outputs, backward(module, inputs, outputs)

    measured = max(live_bytes(allocator_events(train)), default=0)
    expected = timeline.peak_bytes
    # The wrapper copies new values into the buffers and frees them, where the graph cannot know; gradients, too.
    fewer = 0 if change_in_graph else sum(b.nbytes for b in module.buffers())
    copied = sum(out.nbytes for out in step.call(*inputs) if not out.is_contiguous()) if DENSE_GRADIENTS else 0
    assert expected - fewer <= measured <= expected + copied
