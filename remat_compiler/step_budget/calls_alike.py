"""How often a graph is likely to be held at the same time, estimated before the first step has run.

A layer that FSDP2 shards is one of many: each layer's call holds the same bytes until its backward.  So do the
micro-batches of a pipeline, whose schedule says how many forwards run before the first backward.  The budget that the
first graph gets is divided among these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.sharding import FirstStep, first_step
from remat_compiler.step_model.step import Step
from remat_compiler.watching.forwards import is_other_leaf


def allowance_of_alike(free_bytes: int, alike: FirstStep) -> Allowance:
    """The limits of a graph that is most likely one of several alike, each of which holds as much until its backward.

    Args:
        free_bytes: Bytes of the budget that are free now.
        alike: What is known of the others.
    """
    left_bytes = max(free_bytes - alike.ahead_bytes, 1)
    # All but one are held while the last one runs, which takes more than each of them holds.
    limit_bytes = max(left_bytes // 2, 1) if alike.copies > 1 else left_bytes
    held_bytes = max(limit_bytes // max(alike.copies - 1, 1), 1)
    return Allowance(limit_bytes, held_bytes, limit_bytes)


def calls_alike(example_inputs: Sequence[Any]) -> FirstStep | None:
    """What is known of calls that hold as much as the graph at the same time; `None` if there are none.

    Args:
        example_inputs: The inputs of the graph.
    """
    now, pipeline = torch_compat.sharded_now(example_inputs), torch_compat.pipeline_now()
    sharded = None if now is None else first_step(now, torch_compat.sharded_groups())
    if pipeline is None or not pipeline.gradient_bytes:
        return sharded
    overlap = pipeline.forwards > 1
    copies = pipeline.calls if overlap else 1
    # Gradients of what was received from another rank wait until they are sent.
    ahead_bytes = pipeline.gradient_bytes + sum(torch_compat.num_bytes(x) for x in example_inputs if is_other_leaf(x))
    if now is not None and overlap:
        ahead_bytes += now.during_bytes
    if sharded is not None:
        ahead_bytes, copies = ahead_bytes + sharded.ahead_bytes, copies * sharded.copies
    return FirstStep(ahead_bytes, copies, overlap)


def is_rehearsal(step: Step[Any]) -> bool:
    """Whether a complete step only told a pipeline's stages of shapes: the steps to come hold more calls at once.

    Before their first step, stages run one micro-batch through forward and backward.
    """
    pipeline = torch_compat.pipeline_now()
    if pipeline is None:
        return False
    # The loss has no parameters, and may have been left to eager.
    return sum(bool(step.parameters[step.key(call)]) for call in range(len(step.calls))) < pipeline.forwards
