"""Draw the picture of README.md and of the documentation's first page from rows that `pareto.py` wrote.

    python benchmarks/front_picture.py      docs/_static/peak_against_time_light.svg and ..._dark.svg

Peak of a step against its CPU time, for one model: remat, PyTorch's knob, checkpointed blocks, no budget.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_compiler.report import svg

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "benchmarks" / "results" / "pareto.json"
FOLDER = ROOT / "docs" / "_static"
MODEL, NAME = "gpt2", "GPT-2-like model (6 layers)"

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 64, 56


@dataclass(frozen=True, slots=True)
class Colors:
    """The colors of one picture."""

    ink: str
    faint: str
    grid: str
    remat: str
    knob: str
    checkpoint: str
    none: str


THEMES = {
    "light": Colors("#1f2933", "#5b6875", "#e1e6ea", "#1a5fb4", "#b35900", "#2a7d46", "#b3261e"),
    "dark": Colors("#e6eaee", "#a8b3bd", "#3a434b", "#7ab3ff", "#ffb066", "#7fd39b", "#ff8f87"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A way to train: its peak in MiB, its CPU time over that without a budget, and its label."""

    mib: float
    ratio: float
    label: str = ""


def points(rows: Sequence[dict[str, object]], model: str = MODEL) -> dict[str, list[Point]]:
    """The points of each curve, from the smallest peak to the largest."""
    found: dict[str, list[Point]] = {"remat": [], "knob": [], "checkpoint": [], "none": []}
    for row in rows:
        if row["model"] != model:
            continue
        way = str(row["way"])
        point = Point(float(str(row["peak_bytes"])) / 2**20, float(str(row["cpu_ratio"])))
        if way.startswith("remat"):
            found["remat"].append(point)
        elif way.startswith("knob"):
            found["knob"].append(Point(point.mib, point.ratio, way.removeprefix("knob ")))
        elif way == "checkpointed blocks":
            found["checkpoint"].append(point)
        elif way == "inductor":
            found["none"].append(point)
    return {name: sorted(curve, key=lambda point: point.mib) for name, curve in found.items()}


def picture(curves: dict[str, list[Point]], colors: Colors) -> str:
    """The picture as SVG, without a background, so that the page's own shows."""
    low, high = 30.0, 58.0
    bottom, top = 0.95, 1.25

    def x(mib: float) -> float:
        return LEFT + (mib - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(ratio: float) -> float:
        return HEIGHT - BOTTOM - (ratio - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    title = f"A training step of a {NAME}, Inductor, CPU"
    axes = "CPU time over that without a budget: lower is faster; further left takes less memory"
    body = [svg.text(LEFT, 26, title, fill=colors.ink, size=16), svg.text(LEFT, 46, axes, fill=colors.faint, size=13)]
    for ratio in (0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25):
        body.append(svg.line(LEFT, y(ratio), WIDTH - RIGHT, y(ratio), colors.grid))
        body.append(svg.text(LEFT - 8, y(ratio) + 4, f"{ratio:.2f}×", anchor="end", fill=colors.faint, size=13))
    body += [
        svg.text(x(mib), HEIGHT - BOTTOM + 20, str(mib), anchor="middle", fill=colors.faint, size=13)
        for mib in range(30, 59, 4)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    body.append(
        svg.text(middle, HEIGHT - 12, "measured peak of a step, MiB", anchor="middle", fill=colors.ink, size=13)
    )
    for name in ("knob", "remat"):
        path = "M" + " L".join(f"{x(point.mib):.1f},{y(point.ratio):.1f}" for point in curves[name])
        body.append(svg.shape(path, stroke=getattr(colors, name)))
    for name, curve in curves.items():
        color = getattr(colors, name)
        for point in curve:
            body.append(svg.dot(x(point.mib), y(point.ratio), color, rim=color))
            if point.label:
                body.append(svg.text(x(point.mib) + 9, y(point.ratio) + 5, point.label, fill=color, size=13))
    # Beside the first point of each curve.
    for name, right, down, anchor, words in (
        ("knob", 40, 5, "start", "PyTorch's activation_memory_budget"),
        ("remat", 10, -6, "start", "remat, a budget in bytes"),
        ("checkpoint", 10, 5, "start", "every block checkpointed by hand"),
        ("none", 0, -12, "middle", "no budget"),
    ):
        at = curves[name][0]
        place = x(at.mib) + right, y(at.ratio) + down
        body.append(svg.text(*place, words, anchor=anchor, fill=getattr(colors, name), size=13))
    return svg.document(WIDTH, HEIGHT, body, background="")


def main() -> int:
    """Write both pictures."""
    curves = points(json.loads(ROWS.read_text(encoding="utf-8")))
    for theme, colors in THEMES.items():
        path = FOLDER / f"peak_against_time_{theme}.svg"
        path.write_text(picture(curves, colors), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
