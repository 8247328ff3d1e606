"""What the schedule of a pipeline tells of its step beforehand, for each kind of schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from remat_compiler.torch_compat import Pipeline, pipeline_now

if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

WEIGHT = 4 * (3 * 3 + 3)
"""Bytes of the gradients of a stage."""


def stage(index: int, count: int, ranks: int) -> Any:
    """As much of a stage as schedules read before their first micro-batch."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=count,
        group_size=ranks,
        group_rank=index % ranks,
        is_last=index == count - 1,
        submod=nn.Linear(3, 3),
        has_backward=True,
        clear_runtime_states=lambda: None,
    )


def seen(kind: Any, stages: Any, micro_batches: int, loss: Any = None) -> Pipeline | None:
    """What is known in the midst of a step."""
    schedule, found = kind(stages, micro_batches, loss_fn=loss), []
    schedule._step_microbatches = lambda *arguments, **others: found.append(pipeline_now())
    schedule._has_backward = True
    for one in stages if isinstance(stages, list) else [stages]:
        one.is_first = False
    schedule.step(return_outputs=False)
    return found[0]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(("kind", "under_way"), [(ScheduleGPipe, (4, 4, 4)), (Schedule1F1B, (3, 2, 1))])
def test_of_schedules_with_one_stage_on_each_rank(kind: Any, under_way: tuple[int, ...], rank: int) -> None:
    assert seen(kind, stage(rank, 3, 3), 4) == Pipeline(under_way[rank], under_way[rank], WEIGHT)


def test_the_loss_of_each_micro_batch_is_a_call_of_the_last_rank_only() -> None:
    assert seen(ScheduleGPipe, stage(1, 2, 2), 4, nn.functional.mse_loss) == Pipeline(4, 8, WEIGHT)
    assert seen(Schedule1F1B, stage(1, 2, 2), 4, nn.functional.mse_loss) == Pipeline(1, 2, WEIGHT)
    assert seen(ScheduleGPipe, stage(0, 2, 2), 4, nn.functional.mse_loss) == Pipeline(4, 4, WEIGHT)


@pytest.mark.parametrize(("kind", "forwards"), [(ScheduleInterleaved1F1B, 5), (ScheduleInterleavedZeroBubble, 4)])
def test_all_stages_of_a_rank_count_together(kind: Any, forwards: int) -> None:
    # Rank 0 begins with two micro-batches of stage 0, then two of stage 2; one schedule adds one before each backward.
    found = seen(kind, [stage(0, 4, 2), stage(2, 4, 2)], 4)
    assert found is not None
    assert (found.forwards, found.calls, found.gradient_bytes) == (forwards, forwards, 2 * WEIGHT)


def test_one_micro_batch_adds_to_no_gradients() -> None:
    assert seen(ScheduleGPipe, stage(0, 1, 1), 1) == Pipeline(1, 1, 0)


def test_there_is_none_outside_of_a_step() -> None:
    assert pipeline_now() is None
