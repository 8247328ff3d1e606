"""Schedules of `torch.distributed.pipelining`: what the micro-batches of a rank have under way at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from remat_compiler.torch_compat.tensors import num_bytes

_SCHEDULES = "torch.distributed.pipelining.schedules"
_FORWARD = "FORWARD"
_LAST_BACKWARDS = ("FULL_BACKWARD", "BACKWARD_WEIGHT")
"""A backward in two halves lets go of the forward's values with its second one."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is known of a step of a pipeline before it has run.

    Attributes:
        forwards: Most forwards of this rank's stages whose backward is still to come.
        calls: The same with the loss of each micro-batch, if this rank computes it.
        gradient_bytes: Gradients of the stages' parameters, to which further micro-batches add theirs; 0 if there is
            only one.
    """

    forwards: int
    calls: int
    gradient_bytes: int


def pipeline_now() -> Pipeline | None:
    """The pipeline whose step this thread runs; `None` outside of one, and where its schedule does not tell."""
    schedule = _running_schedule()
    order = None if schedule is None else getattr(schedule, "pipeline_order", None)
    if not order:
        return None
    single = getattr(schedule, "_stage", None)
    stages = schedule._stages if single is None else [single]
    # Schedules of one stage for each rank number the ranks by their stages.
    actions = order.get(schedule.rank if single is None else single.stage_index, ())
    # The order of a schedule with more stages than micro-batches names micro-batches that do not exist.
    micro_batches: int = schedule._n_microbatches
    forwards = max(1, min(_most_under_way(actions, None), micro_batches * len(stages)))
    losses = [one.stage_index for one in stages if one.is_last and schedule._loss_fn is not None]
    calls = forwards + sum(min(_most_under_way(actions, stage), micro_batches) for stage in losses)
    parameters = {id(x): x for one in stages for x in one.submod.parameters() if x.requires_grad}
    gradient_bytes = sum(map(num_bytes, parameters.values())) if micro_batches > 1 else 0
    return Pipeline(forwards, calls, gradient_bytes)


def _most_under_way(actions: Any, stage: int | None) -> int:
    """Most forwards without their backward, of one stage, or of all of them."""
    most = now = 0
    for action in _single(actions):
        kind = action.computation_type.name
        if stage is None or action.stage_index == stage:
            now += (kind == _FORWARD) - (kind in _LAST_BACKWARDS)
            most = max(most, now)
    return most


def _running_schedule() -> Any:
    """The schedule whose step calls this function, however deep; `None` if there is none."""
    # Nothing is pipelined in a process that never imported the schedules.
    if _SCHEDULES not in sys.modules:
        return None
    kind = sys.modules[_SCHEDULES]._PipelineSchedule
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _SCHEDULES and isinstance(frame.f_locals.get("self"), kind):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _single(actions: Any) -> Iterator[Any]:
    """The actions without pauses; one that runs a forward and a backward at once as both."""
    for action in actions:
        if action is not None:
            yield from getattr(action, "sub_actions", None) or (action,)
