"""The picture of memory over the step, as SVG: without a budget, with the plan, and the storages alive at the peak.

Written directly, so that it needs no plotting library and the same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from remat_compiler.ir.text_form import format_time
from remat_compiler.report import svg
from remat_compiler.report.curve import MemoryCurve, StepCurves
from remat_compiler.report.plan_report import LiveStorage, PlanReport
from remat_compiler.units import format_bytes

_WIDTH, _HEIGHT = 1080, 470
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 78, 66, 620, 346
_BOTTOM = _TOP + _PLOT_HEIGHT
_PANEL = _LEFT + _PLOT_WIDTH + 34
_PANEL_WIDTH = _WIDTH - _PANEL - 20
_SHOWN = 8

_BEFORE, _AFTER, _BUDGET = svg.GREY, svg.BLUE, svg.RED
_RESERVED = svg.BROWN


@dataclass(frozen=True, slots=True)
class _Axes:
    """From time and bytes to picture coordinates."""

    total_ns: int
    top_bytes: int

    def x(self, time_ns: float) -> float:
        return _LEFT + _PLOT_WIDTH * time_ns / max(self.total_ns, 1)

    def y(self, size: float) -> float:
        # SVG counts from the top down.
        return _TOP + _PLOT_HEIGHT * (1 - size / max(self.top_bytes, 1))


def memory_svg(report: PlanReport, memory: StepCurves) -> str:
    """The picture.

    Args:
        report: Gives the title, the budget and the storages alive at the peak.
        memory: The curves, which most reports have themselves.
    """
    after, before = memory.planned, memory.before
    curves = [after] if before is None else [before, after]
    highest = max([curve.peak_bytes for curve in curves] + [1])
    # A line far above the step would press the curves flat; the panel names its figure all the same.
    lines = [(size, color, name) for size, color, name in _levels(report) if size <= 1.6 * highest]
    # A tenth of the height stays free above the highest line.
    axes = _Axes(max(curve.total_ns for curve in curves), int(1.1 * max([highest, *(size for size, _, _ in lines)])))
    body = [*_title(report), *_frame(axes, after.timed)]
    # Under the plan's curve, which matters more.
    if before is not None:
        body += _curve(axes, before, _BEFORE)
    body += _curve(axes, after, _AFTER)
    body += _boundary(axes, after)
    for size, color, name in lines:
        body += _level(axes, size, color, name)
    # After all lines, so that none covers it.
    body.append(svg.dot(axes.x(after.peak_ns), axes.y(after.peak_bytes), _AFTER))
    body += _panel(report, after, before)
    return svg.document(_WIDTH, _HEIGHT, body)


def _title(report: PlanReport) -> list[str]:
    how = (
        f"{report.num_ops} ops, inner compiler {report.inner}, planned by {report.planner} "
        f"({report.status.value}), +{report.added_percent:.1f} % time"
    )
    return [
        svg.text(_LEFT, 30, f"Memory over one step: {report.graph_name}", size=17, weight="bold"),
        svg.text(_LEFT, 50, how, fill=svg.FAINT),
    ]


def _frame(axes: _Axes, timed: bool) -> list[str]:
    """Grid, tick labels and axis titles."""
    parts = []
    # A power of two is round in every binary unit.
    for size in range(0, axes.top_bytes + 1, 1 << (axes.top_bytes // 6).bit_length()):
        y = axes.y(size)
        parts.append(svg.line(_LEFT, y, _LEFT + _PLOT_WIDTH, y, svg.GRID))
        parts.append(svg.text(_LEFT - 8, y + 4, format_bytes(size), anchor="end", fill=svg.FAINT))
    for time_ns in range(0, axes.total_ns + 1, _round_step(axes.total_ns)):
        x, label = axes.x(time_ns), format_time(time_ns) if timed else str(time_ns)
        parts.append(svg.line(x, _BOTTOM, x, _BOTTOM + 4, svg.FAINT))
        parts.append(svg.text(x, _BOTTOM + 18, label, anchor="middle", fill=svg.FAINT))
    parts.append(svg.line(_LEFT, _BOTTOM, _LEFT + _PLOT_WIDTH, _BOTTOM, svg.FAINT))
    what = "modelled time of the step" if timed else "operators"
    parts.append(svg.text(_LEFT + _PLOT_WIDTH / 2, _BOTTOM + 38, what, anchor="middle", fill=svg.FAINT))
    return parts


def _round_step(top: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that goes at most six times into `top`."""
    power = 1
    while True:
        for lead in (1, 2, 5):
            if top <= 6 * lead * power:
                return lead * power
        power *= 10


def _curve(axes: _Axes, curve: MemoryCurve, color: str) -> list[str]:
    """The outline of the live bytes, filled down to zero."""
    if not curve.columns:
        return []
    width = curve.total_ns / len(curve.columns)
    path, column = "", 0
    # Equal neighbours make one horizontal line, which keeps the file small.
    for size, run in groupby(curve.columns):
        path += f"{'L' if path else 'M'}{axes.x(column * width):.1f} {axes.y(size):.1f}"
        column += len(list(run))
        path += f"H{axes.x(column * width):.1f}"
    area = f"{path}V{_BOTTOM}H{_LEFT}Z"
    return [svg.shape(area, fill=color, opacity=0.24), svg.shape(path, stroke=color)]


def _boundary(axes: _Axes, curve: MemoryCurve) -> list[str]:
    """The line at which the backward starts."""
    # Of the plan's curve: without a budget the backward may start elsewhere.
    x = axes.x(curve.boundary_ns)
    return [
        svg.line(x, _TOP, x, _BOTTOM, svg.FAINT, dash="3 3"),
        svg.text(x - 6, _BOTTOM - 8, "forward", anchor="end", fill=svg.FAINT),
        svg.text(x + 6, _BOTTOM - 8, "backward", fill=svg.FAINT),
    ]


def _levels(report: PlanReport) -> list[tuple[int, str, str]]:
    """Bytes, colour and name of what holds for the whole step, where it is known."""
    reserved = report.reserved_bytes if report.tells_reserved else 0
    levels = [(report.budget_bytes, _BUDGET, "budget"), (reserved, _RESERVED, "reserved, modelled")]
    return [(size, color, name) for size, color, name in levels if size]


def _level(axes: _Axes, size_bytes: int, color: str, name: str) -> list[str]:
    y = axes.y(size_bytes)
    return [
        svg.line(_LEFT, y, _LEFT + _PLOT_WIDTH, y, color, dash="7 4", width=1.4),
        svg.text(_LEFT + 6, y - 6, f"{name} {format_bytes(size_bytes)}", fill=color),
    ]


def _panel(report: PlanReport, after: MemoryCurve, before: MemoryCurve | None) -> list[str]:
    """The legend, and the storages alive at the peak with the source lines that made them."""
    rows = [(_AFTER, "with this plan", after.peak_bytes)]
    if before is not None:
        rows.insert(0, (_BEFORE, "without a budget", before.peak_bytes))
    rows += [(color, name, size) for size, color, name in _levels(report)]
    parts, y = [], float(_TOP + 8)
    right = _PANEL + _PANEL_WIDTH
    for color, label, size in rows:
        parts.append(svg.rectangle(_PANEL, y - 10, 11, 11, color))
        parts.append(svg.text(_PANEL + 18, y, label))
        parts.append(svg.text(right, y, format_bytes(size), anchor="end", weight="bold"))
        y += 19
    y += 16
    where = "backward" if report.peak.in_backward else "forward"
    parts.append(svg.dot(_PANEL + 5, y - 4, _AFTER))
    parts.append(svg.text(_PANEL + 18, y, f"alive at the peak, in the {where}", weight="bold"))
    return parts + _live_rows(report.live_at_peak, y + 24)


def _live_rows(live: Sequence[LiveStorage], y: float) -> list[str]:
    """The largest storages as bars, the others as one line."""
    parts: list[str] = []
    largest = max((one.size_bytes for one in live), default=0)
    right = _PANEL + _PANEL_WIDTH - 5
    for one in live[:_SHOWN]:
        width = _PANEL_WIDTH * one.size_bytes / max(largest, 1)
        parts.append(svg.rectangle(_PANEL, y - 13, width, 29, _AFTER, 0.13))
        parts.append(svg.text(_PANEL + 6, y, svg.cut(f"{one.storage} ({one.kind.value})", 36), size=11))
        parts.append(svg.text(right, y, format_bytes(one.size_bytes), anchor="end", size=11))
        # Either may be unknown.
        origin = "  ".join(part for part in (one.made_by.module, one.made_by.source) if part)
        parts.append(svg.text(_PANEL + 6, y + 12, svg.cut(origin, 52), size=10, fill=svg.FAINT))
        y += 33
    # The panel has room for so many; the sum of the rest keeps the total right.
    rest = live[_SHOWN:]
    if rest:
        total = format_bytes(sum(one.size_bytes for one in rest))
        parts.append(svg.text(_PANEL + 6, y, f"and {len(rest)} more, {total}", size=11, fill=svg.FAINT))
    return parts
