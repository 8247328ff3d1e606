"""A training step on paper: the model is made, compiled by the backend and run on fake tensors, and memory is counted.

The step is the user's own: ``loss = model(inputs); loss.backward(); optimizer.step()``.  It runs twice without being
counted, since the first step compiles, the optimizer's first step makes its state, and graphs that share a budget are
settled after a whole step; the third is counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.devices.gpus import Gpu
from remat_compiler.dry_run.storage_tracker import StorageTracker
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.fitting.fit_report import FitPoint, FitReport
from remat_compiler.fitting.made_step import DEVICE, MadeStep, made_step
from remat_compiler.fitting.request import FitRequest
from remat_compiler.fitting.reserved import reserved_bytes
from remat_compiler.report.store import reports
from remat_compiler.simulate.lives import Life

_BACKWARD, _UPDATE = "backward", "optimizer"
_UNCOUNTED_STEPS = 2
_CUBLAS_BYTES = {9: 32 * 2**20, 10: 32 * 2**20}
_CUBLAS_DEFAULT_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""Workspace of cuBLAS on a stream (``getChosenWorkspaceSize`` in ``CUDABlas.cpp``): by major compute capability: 32 MiB
of Hopper and Blackwell's data center GPUs, else ``:4096:2:16:8``."""


@contextmanager
def on_paper(device: str | Gpu) -> Iterator[tuple[Gpu, Any]]:
    """Within the block, tensors are fake and ``cuda`` is that device; its data sheet and the fake mode.

    Raises:
        UnknownName: The device is unknown.
    """
    # Of the torch that is changed here, to users who did nothing of the kind.
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    mode = torch_compat.FakeTensorMode(allow_non_fake_inputs=True)
    with torch_compat.paper_device(device) as gpu, mode:
        yield gpu, mode


def fit_on_paper(request: FitRequest) -> FitReport:
    """Measure the step of `request` for each batch; for a process of its own, see `paper_process`.

    Raises:
        OptionError: The model or its inputs are not made as they must be, or an option is malformed.
        UnknownName: The device, or another name among the options, is unknown.
    """
    points = []
    with on_paper(request.device) as (gpu, mode):
        for batch in request.batches or (None,):
            start = time.perf_counter()
            points.append(measured_point(made_step(request, batch), request.budget, gpu, mode, batch, start))
    return FitReport.of(gpu, request.budget, points)


def measured_point(
    step: MadeStep, budget: float | str | int | None, gpu: Gpu, mode: Any, batch: Any, start: float
) -> FitPoint:
    """Compile the step under a budget, and count what it takes.

    Args:
        step: The step.
        budget: The backend's ``memory_budget``, or `None`.
        gpu: The device on paper.
        mode: The fake mode of the step's tensors.
        batch: What its inputs were made with.
        start: When work on it began, by `time.perf_counter`.
    """
    step.compile(budget)
    return counted_point(step, gpu, mode, batch, start)


def counted_point(step: MadeStep, gpu: Gpu, mode: Any, batch: Any, start: float) -> FitPoint:
    """Count what a step takes that is ready to run; arguments as for `measured_point`."""
    try:
        for _ in range(_UNCOUNTED_STEPS):
            step.run()
            step.update()
    except InfeasibleBudget as error:
        return FitPoint(
            batch, str(error), smallest_bytes=error.smallest_peak_bytes, seconds=time.perf_counter() - start
        )
    return _counted(gpu, batch, step, mode, start)


def library_bytes(gpu: Gpu) -> int:
    """Workspace that cuBLAS keeps on the device."""
    return _CUBLAS_BYTES.get(gpu.capability[0], _CUBLAS_DEFAULT_BYTES)


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors on the device, shared ones once."""
    return sum(storage_sizes(tensors))


def storage_sizes(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Bytes of each distinct storage on the device."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.device.type == DEVICE.type}
    return [storage.nbytes() for storage in storages.values()]


def resident_sizes(step: MadeStep, gpu: Gpu) -> list[int]:
    """Bytes of what is there before the first step, in the order in which it is made."""
    return [*storage_sizes(step.parameters), *storage_sizes(step.input_tensors), library_bytes(gpu)]


def update_lives(step: MadeStep, mode: Any) -> list[Life]:
    """What the optimizer's step allocates beside the gradients, once its state is there."""
    watch = _Watch(mode, DEVICE.type, ())
    step.make_gradients()
    for tensor in (*step.resident, *step.gradients):
        watch.hold_resident(tensor)
    with watch:
        step.update()
    return [Life(life.size_bytes, life.made, life.freed) for life in watch.lives]


class _Watch(StorageTracker):  # type: ignore[no-untyped-call]
    """Counts what a step takes, while compiled code goes on to be used: Dynamo takes no notice of it."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Otherwise Dynamo would run the step in eager."""
        return True

    def enter_backward(self) -> None:
        """What comes is the backward."""
        self.phase = _BACKWARD


def _counted(gpu: Gpu, batch: Any, step: MadeStep, mode: Any, start: float) -> FitPoint:
    """The figures of one more step."""
    watch = _Watch(mode, DEVICE.type, ())
    for tensor in step.resident:
        watch.hold_resident(tensor)
    with watch:
        step.run(watch.enter_backward)
        gradients = watch.live_bytes
        watch.phase = _UPDATE
        step.update()
    known = WorkspaceTable().resolve(watch.calls.values())
    peaks = {"forward": 0, _BACKWARD: 0, _UPDATE: 0}
    for moment in watch.moments:
        taken = moment.live_bytes + known.get(moment.workspace_key, 0)
        peaks[moment.phase] = max(peaks[moment.phase], taken)

    def reserved(expandable: bool) -> int:
        before, state = resident_sizes(step, gpu), storage_sizes(step.state)
        return reserved_bytes(before, state, watch.lives, gpu.usable_bytes, expandable=expandable)

    expandable = reserved(True)
    made = reports()
    alone = made[0] if len(made) == 1 else None
    return FitPoint(
        batch=batch,
        parameter_bytes=distinct_bytes(step.parameters),
        gradient_bytes=gradients,
        optimizer_bytes=distinct_bytes(step.state),
        input_bytes=distinct_bytes(step.input_tensors),
        forward_bytes=peaks["forward"],
        backward_bytes=peaks[_BACKWARD],
        update_bytes=peaks[_UPDATE],
        library_bytes=library_bytes(gpu),
        reserved_bytes=expandable if segments_expand() else reserved(False),
        expandable_bytes=expandable,
        step_ns=sum(report.step_ns + report.added_ns for report in made),
        added_ns=sum(report.added_ns for report in made),
        bound_ns=sum(report.lower_bound_ns for report in made),
        native_bytes=alone.peak_before_bytes if alone else None,
        planned_bytes=alone.peak_bytes if alone else None,
        floor_bytes=alone.floor.peak_bytes if alone else None,
        floor_forced_by=str(alone.floor.origin) if alone else "",
        unmodelled=tuple(sorted({str(call.func) for key, call in watch.calls.items() if key not in known})),
        seconds=time.perf_counter() - start,
    )
