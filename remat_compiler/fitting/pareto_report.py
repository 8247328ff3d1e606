"""The time of a training step by its peak: as data, as text for people, and as a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from remat_compiler.devices.cpus import Device
from remat_compiler.fitting.fit_report import FitPoint, FitReport, device_record, device_text, gib, not_known
from remat_compiler.fitting.pareto_picture import DrawnPlan, pareto_svg
from remat_compiler.ir.text_form import format_time, table
from remat_compiler.report.notebook import Shown, card, image, preformatted
from remat_compiler.units import written


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
        """The budget as it is written among the options."""
        return "none" if self.budget is None else written(self.budget) if isinstance(self.budget, int) else self.budget

    @property
    def drawn(self) -> DrawnPlan:
        """The point in the picture."""
        point = self.point
        budget = self.budget if isinstance(self.budget, int) else point.block_budget_bytes
        name = f"{self.name}: {written(budget)}" if self.budget != budget else self.name
        return DrawnPlan(budget, name, point.step_ns, point.step_ns - point.added_ns + point.bound_ns)


@dataclass(frozen=True, slots=True)
class ParetoReport(Shown):
    """A training step on a device, under budgets from none to the smallest.

    Attributes:
        device: The device.
        batch: What the step's inputs were made with; `None` if with nothing.
        points: The step under each budget, the largest first.
    """

    device: Device
    batch: Any
    points: tuple[CurvePoint, ...]

    @property
    def fits(self) -> FitReport:
        """The same points as an answer to whether they fit."""
        return FitReport(self.device, "", tuple(one.point for one in self.points))

    @property
    def floor_bytes(self) -> int | None:
        """Peak that no plan can go below, as the planned part of the step counts; `None` if that is not known."""
        floors = [one.point for one in self.points if one.point.floor_bytes is not None]
        # Chunks lower it: those of the smallest budget count.
        alike = (one.floor_bytes for one in floors if one.chunked == floors[-1].chunked)
        return max((floor for floor in alike if floor is not None), default=None)

    @property
    def _kept(self) -> list[CurvePoint]:
        """The points whose budgets are kept."""
        return [one for one in self.points if not one.point.problem]

    def to_json(self) -> str:
        """All figures, for tools."""
        answer = self.fits
        points = [{"budget": one.budget, **answer.record(one.point)} for one in self.points]
        record = {**device_record(self.device), "batch": self.batch, "floor_bytes": self.floor_bytes}
        return json.dumps({**record, "points": points}, indent=1)

    def to_svg(self) -> str:
        """The curve as a picture."""
        beside = max((one.point.resident_bytes for one in self._kept), default=0)
        title = self.device.product + ("" if self.batch is None else f", batch {self.batch}")
        left_bytes = self.device.usable_bytes - beside
        return pareto_svg(title, [one.drawn for one in self._kept], self.floor_bytes, left_bytes)

    def _repr_html_(self) -> str:
        words = "time of the step by its budget: the table has the figures"
        return card(image(self.to_svg(), words), preformatted(str(self)))

    def __str__(self) -> str:
        answer = self.fits
        reserved = ["reserved"] if answer.has_allocator else []
        times = ("time, modelled", "added", "at least")
        rows: list[tuple[str, ...]] = [("budget", "fits", "step", "allocated", *reserved, *times)]
        for one in self.points:
            point = one.point
            if point.problem:
                rows.append((one.name, "no", *("",) * (len(rows[0]) - 2)))
                continue
            reserved_bytes = [point.reserved_bytes] if answer.has_allocator else []
            sizes = map(gib, (point.step_bytes, point.peak_bytes, *reserved_bytes))
            taken = map(format_time, (point.step_ns, point.added_ns, point.bound_ns))
            rows.append((one.name, "yes" if answer.fits(point) else "no", *sizes, *taken))
        batch = [] if self.batch is None else [f"batch {self.batch}"]
        lines = [device_text(self.device), *batch, "", *table(rows, right=(0, *range(2, len(rows[0]))))]
        lines += [f"{one.name}: {one.point.problem}" for one in self.points if one.point.problem]
        lines += [f"{one.name}: {loss}" for one in self.points for loss in one.point.chunked]
        held = [one for one in self._kept if one.point.update_bytes > one.point.budgeted_bytes]
        if held:
            names, most = ", ".join(one.name for one in held), gib(max(one.point.update_bytes for one in held))
            lines.append(
                f"{names}: the optimizer's step takes {most}, more than forward and backward, which a budget is for; a "
                "smaller one frees nothing"
            )
        if self.floor_bytes is not None:
            forced = next(one.point.floor_forced_by for one in self.points if one.point.floor_bytes == self.floor_bytes)
            # Points of other chunks have floors of their own.
            alike = " in as many chunks" if any(one.point.chunked for one in self.points) else ""
            floor = f"no plan of the step{alike} goes below {gib(self.floor_bytes)}"
            lines.append(floor + (f": {forced}" if forced else ""))
        return "".join(f"{line}\n" for line in (*lines, *not_known(answer.points)))
