"""A step that is planned and no more: its smallest peak, and what the device leaves for it.

Planning takes a fraction of the time of generating code, and tells the peak nearly as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.backend import remat
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.devices.cpus import Device
from remat_compiler.devices.gpus import Gpu
from remat_compiler.errors import OptionError
from remat_compiler.fitting.counted_step import (
    distinct_bytes,
    library_bytes,
    library_sizes,
    resident_sizes,
    storage_sizes,
    update_lives,
)
from remat_compiler.fitting.fit_report import FitReport
from remat_compiler.fitting.made_step import MadeStep, made_step
from remat_compiler.fitting.outline import Outline
from remat_compiler.fitting.paper_step import measured_point, on_paper
from remat_compiler.fitting.request import FitRequest
from remat_compiler.fitting.room import Confirmed, Room
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.observer import Observer, observed_by

_LESS = 0.05
"""Part by which a step is to be smaller if the allocator has no room for it."""


class _Planned(BaseException):
    """Ends a compilation once the graph is planned; not an error, so that nobody takes it for one."""

    def __init__(self, partition: Any, request: Any) -> None:
        super().__init__()
        self.partition = partition
        self.request = request


class _Several(BaseException):
    """Ends the compilation of the first of several graphs, which share a budget: planning one says too little."""


class _Ending(Observer):
    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        raise _Planned(partition, request)


def _planning(gm: fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Any:
    """The backend, up to the plan."""
    if torch_compat.ends_at_graph_break(gm):
        raise _Several
    with observed_by(_Ending()):
        return remat(gm, example_inputs, **keywords)


def probe(request: FitRequest, batch: int) -> Room:
    """Plan the step at `batch`; for a process of its own.

    Raises:
        OptionError, UnknownName: As `fit_on_paper` does.
    """
    budget = _asked(request)
    with on_paper(request.device) as (device, mode):
        step = made_step(replace(request, batches=(batch,)), batch)
        step.update_once()
        left = left_bytes(step, device)
        if budget is not None and budget.named_bytes is not None:
            left = min(left, budget.named_bytes)
        whole = budget is not None and budget.part is not None
        # A fraction is one of the step without a budget.
        asked = 1.0 if whole else "min"
        planned: _Planned | None = None
        try:
            step.compile(asked, _planning)
            step.run()
        except _Planned as found:
            planned = found
        except _Several:
            pass
        if planned is None:
            peak = measured_point(step, asked, device, mode, batch, time.perf_counter()).budgeted_bytes
        else:
            peak = planned.partition.peak_bytes
        if budget is not None and whole:
            return Room(batch, left, budget.of_reference(peak) or 0)
        if planned is None:
            return Room(batch, left, peak)
        outline = _outline(planned, step, device, mode, batch, left)
        return Room(batch, left, peak, outline.over_bytes(outline.smallest), outline)


def _outline(planned: _Planned, step: MadeStep, device: Device, mode: Any, batch: int, left: int) -> Outline:
    """What tells the step at other batches."""
    request = planned.request
    return Outline(
        batch=batch,
        problem=replace(planned.partition.problem, reference=None),
        planner=request.planner,
        time_limit=request.time_limit,
        reorders=request.inner == "eager",
        left_bytes=left,
        usable_bytes=device.usable_bytes if isinstance(device, Gpu) else None,
        expandable=segments_expand(),
        resident_bytes=(*resident_sizes(step), *library_sizes(device)),
        state_bytes=tuple(storage_sizes(step.state, step.device)),
        update=tuple(update_lives(step, mode)),
        smallest=planned.partition.result.plan,
    )


def confirm(request: FitRequest, batch: int, budget_bytes: int | None = None, scale: float = 1.0) -> Confirmed:
    """Measure the step at `batch` under what the device leaves for it.

    For a process of its own.

    Args:
        request: The step.
        batch: What it is made with.
        budget_bytes: The budget, if all that is left is too much.
        scale: By how much all that is left is to count less, for what other steps took beyond theirs.

    Raises:
        OptionError, UnknownName: As `fit_on_paper` does.
    """
    asked = _asked(request)
    with on_paper(request.device) as (device, mode):
        start = time.perf_counter()
        step = made_step(replace(request, batches=(batch,)), batch)
        step.update_once()
        if asked is not None and asked.part is not None:
            point = measured_point(step, asked.part, device, mode, batch, start)
            report = FitReport.of(device, request.budget, [point])
            return Confirmed(report, None, 0.0 if report.fits(point) else _LESS)
        budget = budget_bytes or max(1, int(left_bytes(step, device) / scale))
        if asked is not None and asked.named_bytes is not None:
            budget = min(asked.named_bytes, budget)
        point = measured_point(step, budget, device, mode, batch, start)
        report = FitReport.of(device, budget, [point])
        if point.smallest_bytes is not None:
            return Confirmed(report, budget, point.smallest_bytes / budget - 1)
        return Confirmed(report, budget, 0.0 if report.fits(point) else _LESS)


def left_bytes(step: MadeStep, device: Device) -> int:
    """What the device leaves for the step's peak: beside all that is resident, and a reserve for fragmentation."""
    usable = int(device.usable_bytes * (1 - torch_compat.DEVICE_RESERVE))
    return max(1, usable - distinct_bytes(step.resident, step.device) - library_bytes(device))


def _asked(request: FitRequest) -> MemoryBudget | None:
    """The request's budget.

    Raises:
        OptionError: It is malformed, or leaves nothing to search for.
    """
    if request.budget is None:
        return None
    budget = MemoryBudget.parse(request.budget)
    if budget.minimises:
        raise OptionError(
            "got the budget 'min' for the largest batch, which is searched for at its smallest peak anyway; leave it "
            "out, or name bytes or a fraction"
        )
    return budget
