"""The time of a training step by its peak: as data, as text for people, and as a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from remat_compiler.devices.gpus import Gpu
from remat_compiler.fitting.fit_report import FitPoint, FitReport, device_record, device_text, gib
from remat_compiler.fitting.pareto_picture import pareto_svg
from remat_compiler.ir.text_form import format_time, table


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The step under one budget.

    Attributes:
        budget: The backend's ``memory_budget`` in bytes; `None` without one, ``"min"`` for the smallest peak.
        point: The figures.
    """

    budget: int | str | None
    point: FitPoint

    @property
    def name(self) -> str:
        """The budget as people read it."""
        return "none" if self.budget is None else gib(self.budget) if isinstance(self.budget, int) else self.budget


@dataclass(frozen=True, slots=True)
class ParetoReport:
    """A training step on a device, under budgets from none to the smallest.

    Attributes:
        gpu: The device.
        batch: What the step's inputs were made with; `None` if with nothing.
        points: The step under each budget, the largest first.
    """

    gpu: Gpu
    batch: Any
    points: tuple[CurvePoint, ...]

    @property
    def fits(self) -> FitReport:
        """The same points as an answer to whether they fit."""
        return FitReport(self.gpu, "", tuple(one.point for one in self.points))

    @property
    def floor_bytes(self) -> int | None:
        """Peak that no plan can go below, as the planned part of the step counts; `None` if that is not known."""
        floors = [one.point.floor_bytes for one in self.points if one.point.floor_bytes is not None]
        return max(floors, default=None)

    def to_json(self) -> str:
        """All figures, for tools."""
        answer = self.fits
        points = [{"budget": one.budget, **answer.record(one.point)} for one in self.points]
        record = {**device_record(self.gpu), "batch": self.batch, "floor_bytes": self.floor_bytes}
        return json.dumps({**record, "points": points}, indent=1)

    def to_svg(self) -> str:
        """The curve as a picture."""
        shown = [
            (one.point.peak_bytes, one.point.step_ns, one.point.step_ns - one.point.added_ns + one.point.bound_ns)
            for one in self.points
            if not one.point.problem
        ]
        beside = min((one.point.resident_bytes for one in self.points if not one.point.problem), default=0)
        floor = None if self.floor_bytes is None else beside + self.floor_bytes
        title = self.gpu.product + ("" if self.batch is None else f", batch {self.batch}")
        return pareto_svg(title, shown, floor, self.gpu.usable_bytes)

    def __str__(self) -> str:
        answer = self.fits
        rows: list[tuple[str, ...]] = [
            ("budget", "fits", "step", "allocated", "reserved", "time, modelled", "recomputation", "at least")
        ]
        for one in self.points:
            point = one.point
            if point.problem:
                rows.append((one.name, "no", *("",) * 6))
                continue
            sizes = map(gib, (point.step_bytes, point.peak_bytes, point.reserved_bytes))
            times = map(format_time, (point.step_ns, point.added_ns, point.bound_ns))
            rows.append((one.name, "yes" if answer.fits(point) else "no", *sizes, *times))
        batch = [] if self.batch is None else [f"batch {self.batch}"]
        lines = [device_text(self.gpu), *batch, "", *table(rows, right=(0, 2, 3, 4, 5, 6, 7))]
        lines += [f"{one.name}: {one.point.problem}" for one in self.points if one.point.problem]
        if self.floor_bytes is not None:
            forced = next(one.point.floor_forced_by for one in self.points if one.point.floor_bytes == self.floor_bytes)
            lines.append(f"no plan of the step goes below {gib(self.floor_bytes)}" + (f": {forced}" if forced else ""))
        return "".join(f"{line}\n" for line in lines)
