"""Answers of two revisions to the same questions: compared, counted, written and drawn."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VERDICTS = ("same plan", "equal", "better", "worse")


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan as far as it is compared.

    Attributes:
        status: "fits", "over" (the budget), "refused" (by the verifier), "failed" or "error".
        peak_bytes: Its peak.
        added_ns: Its added time.
        digest: Of its steps; empty where there is none.
        seconds: CPU time of planning.
        note: Why there is no plan, or why it does not count.
    """

    status: str
    peak_bytes: int
    added_ns: int
    digest: str
    seconds: float = 0.0
    note: str = ""

    @property
    def fits(self) -> bool:
        """Whether the plan is valid and within the budget."""
        return self.status == "fits"

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Smaller is better."""
        return (not self.fits, bool(self.note), self.added_ns if self.fits else self.peak_bytes)


@dataclass(frozen=True, slots=True)
class Change:
    """One question and both answers.

    Attributes:
        instance: Name of the instance.
        ops: Its operators.
        step_ns: Time of its step without recomputation.
        budget_bytes: The budget of both.
        old: Answer of the first revision.
        new: Answer of the second.
    """

    instance: str
    ops: int
    step_ns: int
    budget_bytes: int
    old: Answer
    new: Answer

    @property
    def verdict(self) -> str:
        """What the new revision did, one of `VERDICTS`."""
        if self.old.digest == self.new.digest and self.old.note == self.new.note:
            return "same plan"
        if self.old.rank == self.new.rank:
            return "equal"
        return "better" if self.new.rank < self.old.rank else "worse"

    def percent(self, answer: Answer) -> float:
        """Added time of `answer` in percent of the step."""
        return 100 * answer.added_ns / max(self.step_ns, 1)


def lines(change: Change) -> str:
    """The line of one question."""
    cells = [
        f"{change.percent(answer):8.3f} %" if answer.fits else f"{answer.status:>10}"
        for answer in (change.old, change.new)
    ]
    notes = "; ".join(f"{name}: {a.note[:80]}" for name, a in (("old", change.old), ("new", change.new)) if a.note)
    return (
        f"{change.instance:34} {change.budget_bytes / 1e6:10.3f} MB  {cells[0]} -> {cells[1]}  "
        f"{change.old.seconds:6.2f} -> {change.new.seconds:6.2f} s  {change.verdict}  {notes}".rstrip()
    )


def summary(changes: Sequence[Change]) -> list[str]:
    """A line an instance with its sums over the budgets, and the sums over all instances."""
    found = [
        f"{'instance':34} {'ops':>6} {'added, old':>12} {'new':>12}  {'new/old':>8}  better worse  CPU s old    new"
    ]
    by_instance: dict[str, list[Change]] = {}
    for change in changes:
        by_instance.setdefault(change.instance, []).append(change)
    for name, own in by_instance.items():
        both = [c for c in own if c.old.fits and c.new.fits]
        old, new = (sum(c.percent(a) for c, a in pairs) / max(len(both), 1) for pairs in _sides(both))
        counts = Counter(c.verdict for c in own)
        found.append(
            f"{name:34} {own[0].ops:6d} {old:10.3f} % {new:10.3f} %  {_ratio(old, new):>8}  "
            f"{counts['better']:6d} {counts['worse']:5d}  {_seconds(own)}"
        )
    both = [c for c in changes if c.old.fits and c.new.fits]
    counts = Counter(c.verdict for c in changes)
    old_ns, new_ns = sum(c.old.added_ns for c in both), sum(c.new.added_ns for c in both)
    ratios = [c.new.added_ns / c.old.added_ns for c in both if c.old.added_ns and c.new.added_ns]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    old, new = (sum(c.percent(a) for c, a in pairs) / max(len(both), 1) for pairs in _sides(both))
    fit = [sum(answer.fits for answer in side) for side in ([c.old for c in changes], [c.new for c in changes])]
    return [
        *found,
        "",
        f"{len(changes)} cases: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS),
        f"plans that fit: {fit[0]} -> {fit[1]}",
        f"where both fit ({len(both)}): added time {old_ns / 1e6:.3f} -> {new_ns / 1e6:.3f} ms in sum "
        f"({_ratio(old_ns, new_ns)}), {old:.3f} -> {new:.3f} % of the step on the mean, "
        f"new/old {mean:.4f} by the geometric mean of {len(ratios)}",
        f"planning, CPU s: {_seconds(changes)}",
    ]


def _sides(changes: Sequence[Change]) -> tuple[list[tuple[Change, Answer]], list[tuple[Change, Answer]]]:
    return [(c, c.old) for c in changes], [(c, c.new) for c in changes]


def _ratio(old: float, new: float) -> str:
    """`new` over `old`, or a dash for nothing over nothing."""
    return f"{new / old:.4f}" if old else ("–" if not new else "inf")


def _seconds(changes: Sequence[Change]) -> str:
    return f"{sum(c.old.seconds for c in changes):9.2f} {sum(c.new.seconds for c in changes):9.2f}"


def write_changes(path: Path, about: Mapping[str, Any], changes: Sequence[Change]) -> None:
    """Write `changes` as JSON, one line a case, behind what the run is `about`."""
    rows = [json.dumps({**asdict(change), "verdict": change.verdict}) for change in changes]
    head = json.dumps(dict(about))[1:-1]
    path.write_text("{" + head + ',\n"changes": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def read_changes(path: Path) -> list[Change]:
    """The changes that `write_changes` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))["changes"]
    for row in rows:
        del row["verdict"]
        row["old"], row["new"] = Answer(**row["old"]), Answer(**row["new"])
    return [Change(**row) for row in rows]


def plot(changes: Sequence[Change], names: Sequence[str], path: Path) -> None:
    """Added time and planning time of the new revision over those of the old one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5.5))
    both = [c for c in changes if c.old.fits and c.new.fits]
    colours = {"better": "tab:green", "worse": "tab:red", "equal": "tab:gray", "same plan": "tab:gray"}
    floor = min((c.percent(a) for c in both for a in (c.old, c.new) if a.added_ns), default=1.0) / 2
    for verdict, colour in colours.items():
        own = [c for c in both if c.verdict == verdict]
        x, y = ([max(c.percent(a), floor) for c, a in side] for side in _sides(own))
        ratio = [b / a for a, b in zip(x, y)]
        axes[0].plot(x, ratio, "o", color=colour, markersize=4, alpha=0.7, label=f"{verdict} ({len(own)})")
        axes[1].plot(
            [c.old.seconds for c in own], [c.new.seconds for c in own], "o", color=colour, markersize=4, alpha=0.7
        )
    axes[0].axhline(1.0, color="black", linewidth=0.8)
    axes[0].set(xlabel=f"added time of {names[0]} (% of the step)", ylabel=f"added time of {names[1]} over it")
    axes[0].set(xscale="log", title="added time, where both fit")
    axes[0].legend()
    ends = [max(min((a.seconds for c in both for a in (c.old, c.new)), default=0.1), 0.001), 0.0]
    ends[1] = max((a.seconds for c in both for a in (c.old, c.new)), default=1.0)
    axes[1].plot(ends, ends, "k-", linewidth=0.8)
    axes[1].set(xlabel=f"{names[0]}, CPU s", ylabel=f"{names[1]}, CPU s", xscale="log", yscale="log", title="planning")
    for axis in axes:
        axis.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, dpi=70)
