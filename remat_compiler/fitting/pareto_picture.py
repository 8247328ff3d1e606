"""The curve of time against budget as SVG: the plans, what no plan can beat, and what the device leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_compiler.report import svg
from remat_compiler.units import format_bytes

_WIDTH, _HEIGHT = 840, 470
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 84, 72, 680, 310
_BOTTOM = _TOP + _PLOT_HEIGHT
_ROOM = 0.07
"""Part of the picture that is left free around the curve."""
_ABOVE = 0.16
"""The same above it, where the labels of the highest point stand."""
_LABEL_WIDTH = 84
"""Room that the label of a point takes."""


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """The step under one budget.

    Attributes:
        budget_bytes: The budget; without one, the smallest under which the plan would be the same.
        name: The budget as it is written among the options.
        time_ns: Time of the step.
        least_ns: What no plan within that budget can go below.
    """

    budget_bytes: int
    name: str
    time_ns: int
    least_ns: int


def pareto_svg(title: str, plans: Sequence[DrawnPlan], floor_bytes: int | None, left_bytes: int) -> str:
    """The picture.

    Args:
        title: What it shows.
        plans: The largest budget first.
        floor_bytes: Budget that no plan keeps below, if that is known.
        left_bytes: What the device leaves beside all that is resident.
    """
    sizes = [plan.budget_bytes for plan in plans] + ([] if floor_bytes is None else [floor_bytes])
    times = [time for plan in plans for time in (plan.time_ns, plan.least_ns)]
    axes = _Axes(_span(sizes), _span(times, _ABOVE))
    body = [
        svg.text(_LEFT, 28, title, size=17, weight="bold"),
        svg.text(_LEFT, 47, "time of the step, modelled, under each memory_budget", fill=svg.FAINT),
        *_frame(axes),
    ]
    if floor_bytes is not None:
        body += _upright(axes.x(floor_bytes), svg.FAINT, "no plan goes below", "start")
    if axes.sizes[0] <= left_bytes <= axes.sizes[1]:
        body += _upright(axes.x(left_bytes), svg.RED, "what the device leaves", "end")
    body.append(svg.shape(_path(axes, [(plan.budget_bytes, plan.least_ns) for plan in plans]), stroke=svg.GREY))
    body.append(svg.shape(_path(axes, [(plan.budget_bytes, plan.time_ns) for plan in plans]), stroke=svg.BLUE))
    body += [svg.dot(axes.x(plan.budget_bytes), axes.y(plan.least_ns), svg.GREY) for plan in plans]
    body += [svg.dot(axes.x(plan.budget_bytes), axes.y(plan.time_ns), svg.BLUE) for plan in plans]
    return svg.document(_WIDTH, _HEIGHT, [*body, *_labels(axes, plans), *_legend()])


class _Axes:
    """From bytes and time to picture coordinates."""

    def __init__(self, sizes: tuple[float, float], times: tuple[float, float]) -> None:
        self.sizes = sizes
        self.times = times

    def x(self, size: float) -> float:
        low, high = self.sizes
        return _LEFT + _PLOT_WIDTH * (size - low) / (high - low)

    def y(self, time_ns: float) -> float:
        # SVG counts from the top down.
        low, high = self.times
        return _BOTTOM - _PLOT_HEIGHT * (time_ns - low) / (high - low)


def _span(values: Sequence[float], above: float = _ROOM) -> tuple[float, float]:
    """From below the least to above the largest, and never empty; `above` is the part that is left free there."""
    low, high = min(values, default=0), max(values, default=1)
    height = (high - low) or max(1.0, high)
    return max(0.0, low - _ROOM * height), high + above * height


def _frame(axes: _Axes) -> list[str]:
    """Grid, tick labels and the title of the lower axis."""
    parts = []
    for size in _ticks(*axes.sizes, bases=(1, 2, 4, 8), step=1024):
        x = axes.x(size)
        parts.append(svg.line(x, _TOP, x, _BOTTOM, svg.GRID))
        parts.append(svg.text(x, _BOTTOM + 18, format_bytes(size), anchor="middle", fill=svg.FAINT))
    for time_ns in _ticks(*axes.times, bases=(1, 2, 5), step=10):
        y = axes.y(time_ns)
        parts.append(svg.line(_LEFT, y, _LEFT + _PLOT_WIDTH, y, svg.GRID))
        parts.append(svg.text(_LEFT - 8, y + 4, f"{time_ns / 1e6:g} ms", anchor="end", fill=svg.FAINT))
    parts.append(svg.line(_LEFT, _BOTTOM, _LEFT + _PLOT_WIDTH, _BOTTOM, svg.FAINT))
    what = "memory_budget: what the step has on top of parameters, optimizer state and inputs"
    parts.append(svg.text(_LEFT + _PLOT_WIDTH / 2, _BOTTOM + 38, what, anchor="middle", fill=svg.FAINT))
    return parts


def _labels(axes: _Axes, plans: Sequence[DrawnPlan]) -> list[str]:
    """At each plan the budget to write, and what it costs; left out where it would cover that of a larger budget."""
    parts: list[str] = []
    fastest = min((plan.time_ns for plan in plans), default=0)
    beyond = float("inf")
    for plan in plans:
        x, y = axes.x(plan.budget_bytes), axes.y(plan.time_ns)
        if beyond - x < _LABEL_WIDTH:
            continue
        beyond = x
        added = f"+{100 * (plan.time_ns / fastest - 1):.1f} %" if fastest else ""
        # To the right, where the curve falls.
        parts.append(svg.text(x + 4, y - 22, plan.name, size=11, weight="bold", fill=svg.BLUE))
        parts.append(svg.text(x + 4, y - 9, added, size=11, fill=svg.FAINT))
    return parts


def _legend() -> list[str]:
    y = _BOTTOM + 66
    return [
        svg.dot(_LEFT + 6, y - 4, svg.BLUE),
        svg.text(_LEFT + 16, y, "the plans, each with its budget and the time that it adds"),
        svg.dot(_LEFT + 386, y - 4, svg.GREY),
        svg.text(_LEFT + 396, y, "what no plan within that budget can go below"),
    ]


def _ticks(low: float, high: float, bases: Sequence[int], step: int) -> list[int]:
    """At most eight round numbers within a range."""
    unit = 1
    while True:
        for base in bases:
            width = base * unit
            first = -(-int(low) // width) * width
            found = list(range(first, int(high) + 1, width)) if (high - low) / width <= 8 else []
            if found:
                return found
        unit *= 2 * bases[-1] if step == 1024 else step


def _upright(x: float, color: str, words: str, anchor: str) -> list[str]:
    """A dashed line from top to bottom, and what it means."""
    shift = 6 if anchor == "start" else -6
    return [
        svg.line(x, _TOP, x, _BOTTOM, color, dash="5 4", width=1.4),
        svg.text(x + shift, _TOP - 6, words, anchor=anchor, fill=color),
    ]


def _path(axes: _Axes, points: Sequence[tuple[float, float]]) -> str:
    places = [f"{axes.x(size):.1f} {axes.y(time):.1f}" for size, time in points]
    return "M" + "L".join(places) if places else ""
