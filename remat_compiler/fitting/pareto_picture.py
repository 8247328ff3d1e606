"""The curve of time against peak as SVG: the plans, what no plan can beat, and what the device has."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.report import svg
from remat_compiler.units import format_bytes

_WIDTH, _HEIGHT = 760, 440
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 84, 62, 640, 310
_BOTTOM = _TOP + _PLOT_HEIGHT
_ROOM = 0.06
"""Part of the picture that is left free around the curve."""


def pareto_svg(title: str, points: Sequence[tuple[int, int, int]], floor_bytes: int | None, device_bytes: int) -> str:
    """The picture.

    Args:
        title: What it shows.
        points: Peak in bytes, time in ns, and the time that no plan of that peak can go below, largest peak first.
        floor_bytes: Peak that no plan can go below, if that is known.
        device_bytes: What the device has.
    """
    sizes = [size for size, _, _ in points] + ([] if floor_bytes is None else [floor_bytes])
    times = [time for _, *both in points for time in both]
    axes = _Axes(_span(sizes), _span(times))
    body = [
        svg.text(_LEFT, 28, title, size=17, weight="bold"),
        svg.text(_LEFT, 47, "time of the step, modelled, by the most that is allocated", fill=svg.FAINT),
        *_frame(axes),
    ]
    if floor_bytes is not None:
        body += _upright(axes.x(floor_bytes), svg.FAINT, "no plan goes below", "start")
    if axes.sizes[0] <= device_bytes <= axes.sizes[1]:
        body += _upright(axes.x(device_bytes), svg.RED, "what the device has", "end")
    body.append(svg.shape(_path(axes, [(size, least) for size, _, least in points]), stroke=svg.GREY))
    body.append(svg.shape(_path(axes, [(size, time) for size, time, _ in points]), stroke=svg.BLUE))
    body += [svg.dot(axes.x(size), axes.y(least), svg.GREY) for size, _, least in points]
    body += [svg.dot(axes.x(size), axes.y(time), svg.BLUE) for size, time, _ in points]
    body += [
        svg.dot(_LEFT + 6, _BOTTOM + 56, svg.BLUE),
        svg.text(_LEFT + 16, _BOTTOM + 60, "the plans"),
        svg.dot(_LEFT + 106, _BOTTOM + 56, svg.GREY),
        svg.text(_LEFT + 116, _BOTTOM + 60, "what no plan of that peak can go below"),
    ]
    return svg.document(_WIDTH, _HEIGHT, body)


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


def _span(values: Sequence[float]) -> tuple[float, float]:
    """From below the least to above the largest, and never empty."""
    low, high = min(values, default=0), max(values, default=1)
    room = _ROOM * (high - low) or max(1.0, _ROOM * high)
    return max(0.0, low - room), high + room


def _frame(axes: _Axes) -> list[str]:
    """Grid and tick labels."""
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
    return parts


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
        svg.text(x + shift, _TOP + 14, words, anchor=anchor, fill=color),
    ]


def _path(axes: _Axes, points: Sequence[tuple[float, float]]) -> str:
    places = [f"{axes.x(size):.1f} {axes.y(time):.1f}" for size, time in points]
    return "M" + "L".join(places) if places else ""
