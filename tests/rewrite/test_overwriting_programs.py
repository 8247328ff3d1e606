"""Random programs under random plans with arguments overwritten: as in eager bit for bit, at no higher peak."""

from __future__ import annotations

from collections import Counter
from random import Random

import torch
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st

from instruments.measure import allocator_events, live_bytes
from remat_compiler.capture.in_place import bytes_overwritten
from rewrite.planned_step import PlannedStep, backward, joint_order, run_step
from rewrite.programs import Program, ProgramModule, inputs_of, programs, returns_an_input
from rewrite.random_plans import random_plan
from transfers_at_random import with_random_transfers

PLANS = 4
MEASURED = 2
"""Plans of each program whose peak is measured."""


def test_every_plan_equals_eager() -> None:
    counted: Counter[str] = Counter()
    every_plan_equals_eager(counted)
    print(dict(counted))
    # Too few would mean that the programs are drawn badly.
    assert counted["overwriting"] >= 3 * counted["plans"]
    assert counted["surely"] >= 30
    assert counted["lower"] >= 10


@settings(
    max_examples=60,
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
        # Autograd refuses some programs, and those in which nothing needs a gradient.
        if "modified by an inplace operation" not in str(error) and "does not require grad" not in str(error):
            raise
        reject()
    step = PlannedStep(module, inputs, change_in_graph=change_in_graph, inplace_buffers=True)
    assume(step.needs_backward)
    surely = {node.name for node in bytes_overwritten(step.captured)}
    for number in range(PLANS):
        plan = random_plan(step.captured.graph, Random(seed + number)) if number else joint_order(step.captured)
        if number % 2:
            plan = with_random_transfers(step.captured.graph, plan, Random(seed + number), share=0.5)
        timeline = step.use(plan)
        outcome = run_step(module, step.call, inputs, buffers)
        if returns_an_input(program):
            # The engine adds the gradient of a returned input outside the graph, in another order than in eager.
            assert outcome.close_to(eager)
        else:
            assert outcome.differences(eager) == []
        counted["plans"] += 1
        counted["overwriting"] += len(step.overwriting)
        if not plan.transfers:
            # What planners count on happens under every plan.
            assert surely <= {node.name for node in step.overwriting}
            counted["surely"] += len(surely)
        if number < MEASURED and plan.boundary < len(plan.steps) and step.tangents_are(module(*inputs)):
            measured = peak_of(step, module, inputs)
            assert measured <= timeline.peak_bytes
            counted["lower"] += measured < timeline.peak_bytes


def peak_of(step: PlannedStep, module: ProgramModule, inputs: tuple[torch.Tensor, ...]) -> int:
    """The allocator's peak of a step."""

    def train() -> object:
        outputs = step.call(*inputs)
        return outputs, backward(module, inputs, outputs)

    return max(live_bytes(allocator_events(train)), default=0)
