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
from xml.sax.saxutils import escape

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

    def words(at_x: float, at_y: float, text: str, fill: str, anchor: str = "start", size: int = 13) -> str:
        return (
            f'<text x="{at_x:.1f}" y="{at_y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}">'
            f"{escape(text)}</text>"
        )

    body = [words(LEFT, 26, f"A training step of a {NAME}, Inductor, CPU", colors.ink, size=16)]
    body.append(
        words(
            LEFT,
            46,
            "CPU time over that without a budget: lower is faster; further left takes less memory",
            colors.faint,
        )
    )
    for ratio in (0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25):
        body.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" stroke="{colors.grid}"/>'
        )
        body.append(words(LEFT - 8, y(ratio) + 4, f"{ratio:.2f}×", colors.faint, "end"))
    body += [words(x(mib), HEIGHT - BOTTOM + 20, str(mib), colors.faint, "middle") for mib in range(30, 59, 4)]
    body.append(words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "measured peak of a step, MiB", colors.ink, "middle"))
    for name in ("knob", "remat"):
        path = " ".join(f"{x(point.mib):.1f},{y(point.ratio):.1f}" for point in curves[name])
        body.append(f'<polyline points="{path}" fill="none" stroke="{getattr(colors, name)}" stroke-width="2"/>')
    for name, curve in curves.items():
        for point in curve:
            body.append(
                f'<circle cx="{x(point.mib):.1f}" cy="{y(point.ratio):.1f}" r="5" fill="{getattr(colors, name)}"/>'
            )
            if point.label:
                body.append(words(x(point.mib) + 9, y(point.ratio) + 5, point.label, colors.knob))
    knob, remat = curves["knob"][0], curves["remat"][0]
    checkpoint, none = curves["checkpoint"][0], curves["none"][0]
    body.append(words(x(knob.mib) + 40, y(knob.ratio) + 5, "PyTorch's activation_memory_budget", colors.knob))
    body.append(words(x(remat.mib) + 10, y(remat.ratio) - 6, "remat, a budget in bytes", colors.remat))
    body.append(
        words(x(checkpoint.mib) + 10, y(checkpoint.ratio) + 5, "every block checkpointed by hand", colors.checkpoint)
    )
    body.append(words(x(none.mib), y(none.ratio) - 12, "no budget", colors.none, "middle"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">'
    )
    return "\n".join([head, *body, "</svg>", ""])


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
