"""Rows of the comparison of planners: read, written, counted, printed and drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from remat_compiler.ir.plan import PlanStatus

SOLVED = frozenset({PlanStatus.OPTIMAL.value, PlanStatus.FEASIBLE.value, PlanStatus.TIMED_OUT.value})


@dataclass(frozen=True, slots=True)
class Row:
    """One planner's answer.

    Attributes:
        instance: Name of the instance.
        ops: Its operators.
        step_ns: Time of its step without recomputation.
        position: Where the budget stands, from 0 to 1.
        budget_bytes: Budget.
        planner: Name of the planner.
        status: How it ended, or "error".
        peak_bytes: Peak of its plan.
        added_ns: Added time of its plan.
        bound_ns: Lower bound of the added time of every plan within this budget; 0 for none.
        seconds: CPU time of planning, child processes included.
        note: What the planner says of itself, or the error.
    """

    instance: str
    ops: int
    step_ns: int
    position: float
    budget_bytes: int
    planner: str
    status: str
    peak_bytes: int
    added_ns: int
    bound_ns: int
    seconds: float
    note: str

    @property
    def fits(self) -> bool:
        """Whether the plan stays within the budget."""
        return self.status in SOLVED and self.peak_bytes <= self.budget_bytes

    @property
    def added_percent(self) -> float:
        """Added time in percent of the step."""
        return 100 * self.added_ns / max(self.step_ns, 1)

    @property
    def gap_percent(self) -> float | None:
        """Added time over the bound in percent of the bound; `None` without a bound or a plan."""
        return 100 * (self.added_ns / self.bound_ns - 1) if self.bound_ns and self.fits else None


Case = tuple[str, float]
SHARED = ("instance", "ops", "step_ns", "position", "budget_bytes", "bound_ns")
OWN = ("status", "peak_bytes", "added_ns", "seconds")


def cpu_seconds() -> float:
    """CPU seconds of this process and of the solvers that it ran and waited for."""
    return sum(os.times()[:4])


def by_case(rows: Sequence[Row]) -> dict[Case, list[Row]]:
    """Rows of the same instance and budget."""
    cases: dict[Case, list[Row]] = {}
    for row in rows:
        cases.setdefault((row.instance, row.position), []).append(row)
    return cases


def violations(rows: Sequence[Row]) -> list[str]:
    """Where another planner beats `auto`, worst first."""
    found: list[tuple[float, str]] = []
    for (name, position), case in by_case(rows).items():
        own = next((row for row in case if row.planner == "auto"), None)
        best = min((row for row in case if row.fits), key=lambda row: row.added_ns, default=None)
        if own is None or best is None or (own.fits and own.added_ns <= best.added_ns):
            continue
        how = f"{own.added_percent:.3f} %" if own.fits else own.status
        by = own.added_percent - best.added_percent if own.fits else 1e9
        found.append((by, f"{name} at {position}: auto {how}, {best.planner} {best.added_percent:.3f} %"))
    return [text for _, text in sorted(found, key=lambda one: (-one[0], one[1]))]


def summary(rows: Sequence[Row]) -> list[str]:
    """A line a planner: how often it is best, within 1 %, without a plan; mean of added time; CPU time."""
    cases = by_case(rows).values()
    lines = [f"{'planner':10} {'cases':>6} {'best':>6} {'<= 1 %':>7} {'no plan':>8} {'failed':>7} {'CPU s':>9}"]
    for planner in sorted({row.planner for row in rows}):
        own = [row for row in rows if row.planner == planner]
        best = near = 0
        for case in cases:
            least = min((row.added_ns for row in case if row.fits), default=None)
            mine = next((row for row in case if row.planner == planner), None)
            if mine is not None and mine.fits and least is not None:
                best += mine.added_ns <= least
                near += mine.added_ns <= 1.01 * least
        failed = sum(row.status in ("error", PlanStatus.FAILED.value) for row in own)
        missed = sum(not row.fits for row in own) - failed
        seconds = sum(row.seconds for row in own)
        lines.append(f"{planner:10} {len(own):6} {best:6} {near:7} {missed:8} {failed:7} {seconds:9.1f}")
    return lines


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines that are printed for the rows of one instance."""
    for (name, position), case in by_case(rows).items():
        first = case[0]
        bound = f"bound {100 * first.bound_ns / max(first.step_ns, 1):.2f} %"
        yield f"{name} at {position:4.2f}: {first.budget_bytes / 1e6:.3f} MB, {first.ops} ops, {bound}"
        for row in case:
            added = f"+{row.added_percent:8.2f} %" if row.fits else f"{row.status:>11}"
            gap = "" if row.gap_percent is None else f"gap {row.gap_percent:6.1f} %"
            peak = f"peak {row.peak_bytes / 1e6:9.3f} MB" if row.peak_bytes else " " * 17
            yield f"    {row.planner:10} {added}  {peak}  {gap:13} {row.seconds:7.2f} s  {row.note[:60]}"


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write `rows` as JSON, one line a case; what planners say of themselves is left out."""
    lines = []
    for case in by_case(rows).values():
        data = asdict(case[0])
        shared = {name: data[name] for name in SHARED}
        shared["planners"] = {row.planner: [getattr(row, name) for name in OWN] for row in case}
        lines.append(json.dumps(shared))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """The rows that `write_rows` wrote."""
    rows = []
    for case in json.loads(path.read_text(encoding="utf-8")):
        for planner, own in case["planners"].items():
            shared = {name: case[name] for name in SHARED}
            rows.append(Row(planner=planner, note="", **shared, **dict(zip(OWN, own))))
    return rows


def plot(rows: Sequence[Row], path: Path) -> None:
    """One frontier an instance, one line a planner: added time over the budget, as a share of the range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted({row.instance for row in rows})
    planners = sorted({row.planner for row in rows})
    columns = min(len(names), 9)
    lines = -(-len(names) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(2.9 * columns, 2.5 * lines), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names):
        for number, planner in enumerate(planners):
            own = [row for row in rows if (row.instance, row.planner) == (name, planner) and row.fits]
            if own:
                style = {"linewidth": 2.2, "zorder": 5} if planner == "auto" else {"linewidth": 1.0}
                axis.plot(
                    [row.position for row in own],
                    [row.added_percent for row in own],
                    marker="o",
                    markersize=3,
                    color=f"C{number}",
                    label=planner,
                    **style,
                )
        proved = [row for row in rows if (row.instance, row.planner) == (name, planners[0])]
        axis.plot(
            [row.position for row in proved],
            [100 * row.bound_ns / max(row.step_ns, 1) for row in proved],
            ":",
            marker=".",
            color="black",
            label="bound",
        )
        axis.set_title(name, fontsize=7)
        axis.set_yscale("symlog", linthresh=1)
        axis.set(xlim=(0, 1), ylim=(0, None))
        axis.tick_params(labelsize=6)
        axis.grid(alpha=0.3)
    handles = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncol=len(handles), fontsize=9)
    figure.supxlabel("budget: 0 smallest peak found, 1 no recomputation")
    figure.supylabel("added time, % of the step")
    figure.tight_layout(rect=(0.01, 0.01, 1, 1 - 0.3 / (2.5 * lines)))
    figure.savefig(path, dpi=60)
