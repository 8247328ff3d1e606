"""When each step of a plan runs by the modelled times, with what it waits for copies: the times behind `timeline`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.transfers import Copies, TransferLife, transfer_lives, transfer_times


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a plan, as times from the begin of the training step in nanoseconds.

    Attributes:
        waits_from_ns: When the step could begin if it awaited no copy.
        begin_ns: When it begins; later than `waits_from_ns` if it waits for a copy.
        end_ns: When it ends.
    """

    waits_from_ns: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of a plan.

    Attributes:
        steps: Times of each step; they follow each other without gaps but for the waits.
        copies: The copies of each transfer, in the order of `Plan.transfers`.
        lives: The steps around each transfer, in the same order.
        drag_ns: What operators lose because copies slow them down and have to be begun; it comes on top, at the end.
        total_ns: Time of the training step, as the simulator has it.
    """

    steps: tuple[StepTime, ...]
    copies: tuple[Copies, ...]
    lives: tuple[TransferLife, ...]
    drag_ns: int
    total_ns: int


def schedule(graph: TrainingGraph, costs: CostTable, plan: Plan) -> Schedule:
    """The times of a valid `plan`."""
    arrays, steps = GraphArrays.of(graph, costs), np.array(plan.steps, np.int64)
    times: list[int] = arrays.time_ns[steps].tolist()
    begins = list(accumulate(times, initial=0))
    late = [0] * len(begins)
    beside = transfer_times(arrays, steps, plan.boundary, plan.transfers)
    lives = transfer_lives(arrays, steps, plan.boundary, plan.transfers)
    # A step that gives memory up waits for the copy out, one that reads for the copy back.
    for one, life, copies in zip(plan.transfers, lives, beside.copies):
        for step, end_ns in ((one.out_after, copies.out_end_ns), (life.read, copies.back_end_ns)):
            late[step] = max(late[step], end_ns - begins[step])
    # Once late, all later steps are.
    late = list(accumulate(late, max))
    before = [0, *late]
    made = tuple(
        StepTime(begins[i] + before[i], begins[i] + late[i], begins[i] + late[i] + times[i]) for i in range(len(times))
    )
    return Schedule(made, beside.copies, tuple(lives), beside.drag_ns, beside.time_ns)
