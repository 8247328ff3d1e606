"""What the demo found: one outcome a run, as a table, as a picture, and checked against what remat promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from remat_compiler.report import svg
from remat_compiler.units import format_bytes

PREDICTION_TOLERANCE = 0.001
"""Largest distance of the predicted from the measured peak, as a fraction of the measured one."""
LOSS_TOLERANCE = 1e-4
"""Largest relative difference of a loss to the one without a budget: rounding, in another order of additions."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run showed.

    Attributes:
        name: What was run.
        compiler: What compiled it, ``remat`` or ``torch``; only remat promises something.
        limit_bytes: The budget in bytes, or `None` where there is no limit to keep.
        predicted_bytes: Peak that remat reported before the first step, or `None` where there is no prediction.
        measured_bytes: Peak that the allocator saw.
        step_ns: Median time of a step.
        ratio: The step's time over that of the run without a budget.
        losses: Loss of each training step.
        loss_error: Largest relative difference of a loss to that of the run without a budget.
    """

    name: str
    compiler: str
    limit_bytes: int | None
    predicted_bytes: int | None
    measured_bytes: int
    step_ns: int
    ratio: float
    losses: tuple[float, ...]
    loss_error: float

    @property
    def ours(self) -> bool:
        """Whether remat compiled it."""
        return self.compiler == "remat"

    @property
    def kept(self) -> bool:
        """Whether the measured peak is within the budget; true where there is none."""
        return self.limit_bytes is None or self.measured_bytes <= self.limit_bytes

    @property
    def same_loss(self) -> bool:
        """Whether every loss equals the one without a budget."""
        return self.loss_error <= LOSS_TOLERANCE


def relative_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Largest relative difference of two series of equal length; infinite where one has a loss that is no number."""
    if len(losses) != len(reference):
        raise ValueError(f"got {len(losses)} and {len(reference)} losses; allowed are equally many")
    errors = [abs(loss - other) / max(abs(other), 1e-12) for loss, other in zip(losses, reference)]
    return max((error if error == error else float("inf") for error in errors), default=0.0)


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each promise that was not kept."""
    found = []
    for one in outcomes:
        if one.ours and not one.kept:
            found.append(f"{one.name}: peaks at {one.measured_bytes} bytes, above its budget of {one.limit_bytes}")
        if one.ours and one.predicted_bytes is None:
            found.append(f"{one.name}: no peak was predicted")
        elif one.ours and _prediction_error(one) > PREDICTION_TOLERANCE:
            found.append(f"{one.name}: predicted {one.predicted_bytes} bytes, measured {one.measured_bytes}")
        if not one.same_loss:
            found.append(f"{one.name}: the loss differs by {one.loss_error:.1e} from the one without a budget")
    return found


def _prediction_error(one: Outcome) -> float:
    assert one.predicted_bytes is not None
    return abs(one.predicted_bytes - one.measured_bytes) / max(one.measured_bytes, 1)


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The outcomes for a JSON file, with the checks that the table shows."""
    return [asdict(one) | {"kept": one.kept, "same_loss": one.same_loss} for one in outcomes]


HEADINGS = ("run", "budget", "predicted", "measured", "off by", "kept", "step", "time", "last loss", "same")


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes, one a row, columns aligned; the first column to the left, numbers to the right."""
    shown = [HEADINGS, *(_row(one) for one in outcomes)]
    widths = [max(len(row[i]) for row in shown) for i in range(len(HEADINGS))]
    lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]) for row in shown]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(one: Outcome) -> tuple[str, ...]:
    predicted, off = "-", "-"
    if one.predicted_bytes is not None:
        predicted, off = format_bytes(one.predicted_bytes), format_bytes(one.measured_bytes - one.predicted_bytes)
    return (
        one.name,
        "-" if one.limit_bytes is None else format_bytes(one.limit_bytes),
        predicted,
        format_bytes(one.measured_bytes),
        off,
        "-" if one.limit_bytes is None else _yes(one.kept),
        f"{one.step_ns / 1e6:.0f} ms",
        f"{one.ratio:.2f}x",
        f"{one.losses[-1]:.5f}",
        _yes(one.same_loss),
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


_WIDTH, _TOP, _ROW = 1080, 104, 42
_NAMES, _PEAKS, _TIMES, _PANEL = 24, 250, 680, 280
_BAR = 20
_LEGEND = (
    "Peaks as the allocator saw them, red: the budget, grey: not compiled by remat.  "
    "Medians of interleaved steps, ratios within a round."
)


def picture(outcomes: Sequence[Outcome], title: str) -> str:
    """Peak and step time of all runs side by side, as SVG; the budget is a red mark on the bar of the peak."""
    largest = max([max(one.measured_bytes, one.limit_bytes or 0) for one in outcomes] + [1])
    slowest = max([one.step_ns for one in outcomes] + [1])
    body = [
        svg.text(_NAMES, 34, title, size=17, weight="bold"),
        svg.text(_NAMES, 54, _LEGEND, fill=svg.FAINT),
        svg.text(_PEAKS, _TOP - 14, "peak of a step", weight="bold"),
        svg.text(_TIMES, _TOP - 14, "time of a step", weight="bold"),
    ]
    bottom = _TOP + _ROW * len(outcomes)
    body += [svg.line(left, _TOP - 4, left, bottom - 8, svg.FAINT) for left in (_PEAKS, _TIMES)]
    for row, one in enumerate(outcomes):
        body += _bars(one, _TOP + _ROW * row, one.measured_bytes / largest, one.step_ns / slowest)
        if one.limit_bytes is not None:
            x = _PEAKS + _PANEL * one.limit_bytes / largest
            y = _TOP + _ROW * row
            body.append(svg.line(x, y - 2, x, y + _BAR + 6, svg.RED, width=2.0))
    return svg.document(_WIDTH, bottom + 18, body)


def _bars(one: Outcome, y: float, peak: float, time: float) -> list[str]:
    """Name and both bars of one run; `peak` and `time` are fractions of the longest bar."""
    color = svg.BLUE if one.ours else svg.GREY
    middle = y + _BAR / 2 + 6
    return [
        svg.text(_NAMES, middle, one.name),
        svg.rectangle(_PEAKS, y + 2, _PANEL * peak, _BAR, color, 0.85),
        svg.text(_PEAKS + _PANEL * peak + 10, middle, format_bytes(one.measured_bytes)),
        svg.rectangle(_TIMES, y + 2, _PANEL * time, _BAR, color, 0.85),
        svg.text(_TIMES + _PANEL * time + 8, middle, f"{one.step_ns / 1e6:.0f} ms  {one.ratio:.2f}x", size=11),
    ]
