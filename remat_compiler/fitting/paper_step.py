"""A training step on paper: the model is made, compiled by the backend and run on fake tensors, and memory is counted.

The step is the user's own: ``loss = model(inputs); loss.backward(); optimizer.step()``.  It runs twice without being
counted, since the first step compiles, the optimizer's first step makes its state, and graphs that share a budget are
settled after a whole step; the third is counted.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.devices.cpus import Device
from remat_compiler.devices.gpus import Gpu
from remat_compiler.dry_run.paper_run import emitted_on_paper
from remat_compiler.errors import InfeasibleBudget, PaperFailure
from remat_compiler.fitting.counted_step import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Counted,
    count,
    distinct_bytes,
    library_bytes,
    settle,
)
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.made_step import MadeStep, made_step
from remat_compiler.fitting.request import FitRequest
from remat_compiler.progress import progress
from remat_compiler.report.store import reports
from remat_compiler.simulate.reserved import in_use, reserved_bytes


@contextmanager
def on_paper(device: str | Device) -> Iterator[tuple[Device, Any]]:
    """Within the block, tensors are fake and steps are for that device; the device and the fake mode.

    Raises:
        UnknownName: The device is unknown.
        PaperFailure: What runs in the block asks for the values of a tensor.
    """
    # Of the torch that is changed here, to users who did nothing of the kind.
    for message in ("Accessing the data pointer of FakeTensor", "dynamo_pgo force disabled"):
        warnings.filterwarnings("ignore", message=message)
    mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True)
    with torch_compat.paper_device(device) as found, emitted_on_paper(), mode:
        try:
            yield found, mode
        except torch_compat.VALUE_ERRORS as error:
            raise PaperFailure(
                f"the step asks what a tensor holds ({error.func}{_asked_at(error)}), and tensors on paper hold "
                "nothing: sizes and branches that hang on data cannot be told beforehand; ask about a form of the step "
                "without them"
            ) from error


def _asked_at(error: BaseException) -> str:
    """Where the user's program raised `error`."""
    ours = Path(__file__).parents[1]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not Path(frame.filename).is_relative_to(ours)
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].line}" if frames else ""


def fit_on_paper(request: FitRequest) -> FitReport:
    """Measure the step of `request` for each batch; for a process of its own, see `paper_process`.

    Raises:
        OptionError: The model or its inputs are not made as they must be, or an option is malformed.
        UnknownName: The device, or another name among the options, is unknown.
    """
    points = []
    batches = request.batches or (None,)
    with on_paper(request.device) as (device, mode), progress("steps on paper", len(batches)) as bar:
        for batch in batches:
            start = time.perf_counter()
            points.append(measured_point(made_step(request, batch), request.budget, device, mode, batch, start))
            bar.advance()
    return FitReport.of(device, request.budget, points)


def measured_point(
    step: MadeStep, budget: float | str | int | None, device: Device, mode: Any, batch: Any, start: float
) -> FitPoint:
    """Compile the step under a budget, and count what it takes.

    Args:
        step: The step.
        budget: The backend's ``memory_budget``, or `None`.
        device: The device on paper.
        mode: The fake mode of the step's tensors.
        batch: What its inputs were made with.
        start: When work on it began, by `time.perf_counter`.
    """
    step.compile(budget)
    return counted_point(step, device, mode, batch, start)


def counted_point(step: MadeStep, device: Device, mode: Any, batch: Any, start: float) -> FitPoint:
    """Count what a step takes that is ready to run; arguments as for `measured_point`."""
    try:
        settle(step, mode)
    except InfeasibleBudget as error:
        return FitPoint(
            batch, str(error), smallest_bytes=error.smallest_peak_bytes, seconds=time.perf_counter() - start
        )
    counted = count(step, mode)
    point = _figures(device, batch, step, counted)
    if isinstance(device, Gpu):
        point = _in_blocks(point, device, step, counted)
    return replace(point, seconds=time.perf_counter() - start)


def _figures(device: Device, batch: Any, step: MadeStep, counted: Counted) -> FitPoint:
    """The figures of the step that hold for any device."""
    made = reports()
    alone = made[0] if len(made) == 1 else None
    return FitPoint(
        batch=batch,
        parameter_bytes=distinct_bytes(step.parameters, step.device),
        gradient_bytes=counted.gradient_bytes,
        optimizer_bytes=distinct_bytes(step.state, step.device),
        input_bytes=distinct_bytes(step.input_tensors, step.device),
        forward_bytes=counted.peaks[FORWARD],
        backward_bytes=counted.peaks[BACKWARD],
        update_bytes=counted.peaks[UPDATE],
        library_bytes=library_bytes(device),
        step_ns=modelled_ns(),
        added_ns=sum(report.runs * report.added_ns for report in made),
        bound_ns=sum(report.runs * report.lower_bound_ns for report in made),
        native_bytes=alone.peak_before_bytes if alone else None,
        planned_bytes=(alone.requested_bytes or alone.peak_bytes) if alone else None,
        floor_bytes=alone.floor.peak_bytes if alone else None,
        floor_forced_by=str(alone.floor.origin) if alone else "",
        chunked=tuple(loss for report in made for loss in report.chunked),
        unmodelled=counted.unmodelled,
    )


def _in_blocks(point: FitPoint, gpu: Gpu, step: MadeStep, counted: Counted) -> FitPoint:
    """`point` with what torch's caching allocator, which is that of GPUs, makes of the step."""
    trace = counted.trace(step, gpu)

    def reserved(expandable: bool) -> int:
        return reserved_bytes(trace, gpu.usable_bytes, expandable=expandable)

    expandable = reserved(True)
    blocks = in_use(trace, expandable=segments_expand())
    return replace(
        point,
        in_use_bytes=blocks.above_bytes,
        allocated_bytes=blocks.all_bytes,
        reserved_bytes=expandable if segments_expand() else reserved(False),
        expandable_bytes=expandable,
    )


def modelled_ns() -> int:
    """Modelled time of forward and backward of the graphs that were planned last, as planned."""
    return sum(report.runs * (report.step_ns + report.added_ns) for report in reports())
