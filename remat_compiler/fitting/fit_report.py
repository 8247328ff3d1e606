"""The answer to the question whether training steps fit a device: as data, and as text for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from remat_compiler.devices.allocator_setting import EXPANDABLE
from remat_compiler.devices.cpus import Device
from remat_compiler.devices.gpus import CONTEXT_BYTES, Gpu
from remat_compiler.ir.text_form import table
from remat_compiler.report.notebook import Shown
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.units import format_bytes

_WORTH_SAYING = 0.01
"""Part of what is reserved that another setting of the allocator must save to be mentioned."""


@dataclass(frozen=True, slots=True)
class FitPoint:
    """One training step on the device.

    Attributes:
        batch: What its inputs were made with; `None` if with nothing.
        problem: Why there is no such step under the budget; empty otherwise, and then all figures hold.
        parameter_bytes: Parameters and buffers.
        gradient_bytes: Gradients of the parameters, alive from the backward to the end of the optimizer's step.
        optimizer_bytes: State of the optimizer.
        input_bytes: Inputs.
        forward_bytes: Most that the forward has on top of all these but the gradients; so are the other two.
        backward_bytes: Most that the backward has.
        update_bytes: Most that the optimizer's step has.
        in_use_bytes: Most that the three have in whole blocks of torch's caching allocator, by its model; 0 on a CPU,
            which has no such allocator, and so are the next four.
        allocated_bytes: Most that all of it has in whole blocks, with what is there before the step.
        library_bytes: Workspaces that cuBLAS keeps, for the forward's thread and the backward's.
        reserved_bytes: Most that torch's caching allocator reserves, by its model.
        expandable_bytes: The same with expandable segments, whether or not the user has set them.
        step_ns: Modelled time of forward and backward as planned.
        added_ns: Modelled time that plans add: recomputation, waiting for copies, and losses in chunks.
        bound_ns: What no plan of that peak can go below in that.
        native_bytes: Peak of the step without a budget as `backward_bytes` counts, if it is one graph.
        planned_bytes: Peak of what the step asks for as the backend reports it, if it is one graph.
        floor_bytes: Peak that no plan can go below, if it is one graph.
        floor_forced_by: The operator that forces it.
        smallest_bytes: Smallest reachable peak, if that is the `problem`.
        chunked: Losses that are computed in chunks.
        unmodelled: Operators whose workspace no form tells; they count with their results alone.
        seconds: Time that the answer took.
    """

    batch: object = None
    problem: str = ""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    input_bytes: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    update_bytes: int = 0
    in_use_bytes: int = 0
    allocated_bytes: int = 0
    library_bytes: int = 0
    reserved_bytes: int = 0
    expandable_bytes: int = 0
    step_ns: int = 0
    added_ns: int = 0
    bound_ns: int = 0
    native_bytes: int | None = None
    planned_bytes: int | None = None
    floor_bytes: int | None = None
    floor_forced_by: str = ""
    smallest_bytes: int | None = None
    chunked: tuple[ChunkedRegion, ...] = ()
    unmodelled: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def resident_bytes(self) -> int:
        """What is there before each step: parameters, buffers, state of the optimizer, inputs, cuBLAS's workspace."""
        return self.parameter_bytes + self.optimizer_bytes + self.input_bytes + self.library_bytes

    @property
    def budgeted_bytes(self) -> int:
        """Most that forward and backward have, which is what a budget is about."""
        return max(self.forward_bytes, self.backward_bytes)

    @property
    def block_budget_bytes(self) -> int:
        """A budget that this step keeps, on a GPU in whole blocks."""
        # What is in use counts the optimizer's step, too, whose blocks no budget is about.
        own = self.update_bytes <= self.budgeted_bytes
        return max(self.budgeted_bytes, self.in_use_bytes if own else 0)

    @property
    def step_bytes(self) -> int:
        """Most that the step has on top of what is there before it."""
        return max(self.budgeted_bytes, self.update_bytes)

    @property
    def peak_bytes(self) -> int:
        """Most that is allocated; on a GPU, as `torch.cuda.max_memory_allocated` says."""
        return max(self.resident_bytes + max(self.step_bytes, self.in_use_bytes), self.allocated_bytes)


@dataclass(frozen=True, slots=True)
class FitReport(Shown):
    """Training steps on a device.

    Attributes:
        device: The device.
        budget: The backend's ``memory_budget``, as text; empty without one.
        points: A step for each batch.
    """

    device: Device
    budget: str
    points: tuple[FitPoint, ...]

    @staticmethod
    def of(device: Device, budget: object, points: Sequence[FitPoint]) -> FitReport:
        """The report for steps on `device`."""
        return FitReport(device, "" if budget is None else str(budget), tuple(points))

    @property
    def has_allocator(self) -> bool:
        """Whether torch's caching allocator stands between a step and the device's memory."""
        return isinstance(self.device, Gpu)

    def left_bytes(self, point: FitPoint) -> int:
        """What a step leaves of the device's memory; negative if it does not fit."""
        return self.device.usable_bytes - (point.reserved_bytes if self.has_allocator else point.peak_bytes)

    def fits(self, point: FitPoint) -> bool:
        """Whether there is such a step, and it fits."""
        return not point.problem and self.left_bytes(point) >= 0

    def record(self, point: FitPoint) -> dict[str, Any]:
        """All figures of a step, for tools."""
        derived = {"peak_bytes": point.peak_bytes, "left_bytes": self.left_bytes(point), "fits": self.fits(point)}
        return {**asdict(point), **derived}

    def to_json(self) -> str:
        """All figures, for tools."""
        points = [self.record(point) for point in self.points]
        return json.dumps({**device_record(self.device), "budget": self.budget, "points": points}, indent=1)

    def __str__(self) -> str:
        under = f"memory_budget {self.budget}\n" if self.budget else "without a budget\n"
        return f"{device_text(self.device)}\n{under}\n" + (_details(self) if len(self.points) == 1 else _overview(self))


def device_record(device: Device) -> dict[str, Any]:
    """A device and its memory, for tools."""
    context = CONTEXT_BYTES if isinstance(device, Gpu) else 0
    memory = {"total_bytes": device.total_bytes, "context_bytes": context, "usable_bytes": device.usable_bytes}
    return {"device": device.name, "product": device.product, **memory}


def device_text(device: Device) -> str:
    """A device and its memory, for people."""
    if isinstance(device, Gpu):
        return f"{device.product}: {gib(device.total_bytes)}, of which {gib(device.usable_bytes)} are left to torch"
    memory = f"{gib(device.total_bytes)}, of which {gib(device.usable_bytes)} are left to the step"
    return f"{device.product}, {device.threads} threads: {memory}; times are {times_from(device)}"


def times_from(device: Device) -> str:
    """Where the times of steps on a device come from."""
    if isinstance(device, Gpu):
        return "modelled by rates measured on it" if device.figures else "modelled from the data sheet"
    if device.figures:
        return "modelled by rates measured on this CPU"
    return "modelled by nominal rates of one core, since this CPU could not be timed"


def _overview(report: FitReport) -> str:
    """One line a batch."""
    reserved = ["reserved"] if report.has_allocator else []
    rows: list[tuple[str, ...]] = [("batch", "fits", "step", "allocated", *reserved, "left", "time, modelled", "added")]
    for point in report.points:
        if point.problem:
            rows.append((str(point.batch), "no", *("",) * (len(rows[0]) - 2)))
            continue
        reserved_bytes = [point.reserved_bytes] if report.has_allocator else []
        bytes_ = (point.step_bytes, point.peak_bytes, *reserved_bytes, report.left_bytes(point))
        times = (f"{point.step_ns / 1e6:.1f} ms", f"{point.added_ns / 1e6:.1f} ms")
        rows.append((str(point.batch), "yes" if report.fits(point) else "no", *map(gib, bytes_), *times))
    lines = table(rows, right=range(2, len(rows[0])))
    lines += [f"batch {point.batch}: {point.problem}" for point in report.points if point.problem]
    lines += [f"batch {point.batch}: {loss}" for point in report.points for loss in point.chunked]
    return "".join(f"{line}\n" for line in (*lines, *not_known(report.points)))


def _details(report: FitReport) -> str:
    """All figures of one step, each with where it comes from."""
    (point,) = report.points
    if point.problem:
        return f"does not fit: {point.problem}\n"
    rows = [*_parts(point), *(_in_blocks(point) if report.has_allocator else _plain(point))]
    rows.append(("left", report.left_bytes(point), f"of {gib(report.device.usable_bytes)}"))
    lines = table([(name, gib(size), note) for name, size, note in rows if size or name != "library"], right=(1,))
    lines.append("")
    if point.native_bytes is not None:
        lines.append(f"without a budget the step would take {gib(point.native_bytes)} where the backward stands above")
    lines.append(
        f"step, {times_from(report.device)}: {point.step_ns / 1e6:.1f} ms, {point.added_ns / 1e6:.1f} ms of them "
        "added by the plan; the optimizer's step is not part of it"
    )
    if point.expandable_bytes < (1 - _WORTH_SAYING) * point.reserved_bytes:
        lines.append(f"with {EXPANDABLE} it would reserve {gib(point.expandable_bytes)}")
    lines += [*map(str, point.chunked), *not_known(report.points)]
    lines.append("it fits" if report.fits(point) else "it does not fit")
    return "".join(f"{line}\n" for line in lines)


def _parts(point: FitPoint) -> list[tuple[str, int, str]]:
    """What a step is made up of: name, bytes, and where they come from."""
    return [
        ("parameters", point.parameter_bytes, "exact: with buffers"),
        ("optimizer", point.optimizer_bytes, "exact: its state"),
        ("inputs", point.input_bytes, "exact"),
        ("library", point.library_bytes, "constant: cuBLAS's workspaces"),
        ("forward", point.forward_bytes, "exact but for workspaces: on top of the above"),
        ("backward", point.backward_bytes, f"likewise, with {gib(point.gradient_bytes)} of gradients"),
        ("optimizer's step", point.update_bytes, "likewise"),
    ]


def _in_blocks(point: FitPoint) -> list[tuple[str, int, str]]:
    """What torch's caching allocator makes of the parts."""
    return [
        ("in blocks", point.in_use_bytes, "modelled: the largest of the three in whole blocks of torch's allocator"),
        ("allocated", point.peak_bytes, "peak: all in whole blocks, as max_memory_allocated says"),
        ("reserved", point.reserved_bytes, "modelled: torch's caching allocator"),
    ]


def _plain(point: FitPoint) -> list[tuple[str, int, str]]:
    """What the parts come to without such an allocator."""
    return [("allocated", point.peak_bytes, "peak: the first three and the largest of the other three")]


def not_known(points: Sequence[FitPoint]) -> list[str]:
    """The line about operators whose workspace no form tells, if there are any."""
    names = sorted({name for point in points for name in point.unmodelled})
    return [f"not known, and counted as 0: what these take inside: {', '.join(names)}"] if names else []


def gib(size: int) -> str:
    """Bytes for people, in GiB if there are many."""
    return f"{size / 2**30:.2f} GiB" if abs(size) >= 2**27 else format_bytes(size)
