"""Every registered planner on every instance, side by side: added time, peak, gap to the bound, CPU time, status.

    python benchmarks/planners.py [--instances 'gpt2_*'] [--planners auto dtr] [--positions 0.05 0.5] [--short]
                                  [--json OUT.json] [--plot OUT.png]

Budgets stand at positions between the smallest peak that `auto` finds (0) and the peak of saving everything (1).  A
reference partition is shown only to the planners that are made from one; the backend, too, plans without.  The bound
is the best that any planner proved or `remat_passes.bounds` proves for that budget.  A summary counts how often each
planner is the best, within 1 % of the best, and without a plan that fits; where another planner beats `auto` is told
in full.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from make_instances import instance_name, instance_paths
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.problem_file import read_problem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.lower_bound import lower_bound_ns
from remat_passes.planning.auto import Auto
from remat_passes.planning.interface import Planner
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner, planner_names

POSITIONS = (0.05, 0.12, 0.25, 0.5, 0.75)
FROM_REFERENCE = frozenset({"min_cut", "knapsack"})
"""Planners that are made from torch's own partition."""
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


def run_instance(
    name: str, problem: RematProblem, planners: Sequence[Planner], positions: Sequence[float]
) -> list[Row]:
    """Rows of one instance at every position."""
    bare = replace(problem, reference=None)
    high = SaveAll().plan(bare).peak_bytes
    low = Auto().smallest_peak(replace(bare, budget_bytes=0)).peak_bytes
    rows = []
    for position in positions:
        budget = low + round(position * (high - low))
        asked = replace(problem, budget_bytes=budget)
        own = [_run(name, asked, planner, position) for planner in planners]
        bound = max([lower_bound_ns(replace(asked, reference=None)).bound_ns, *(row.bound_ns for row in own)])
        rows += [replace(row, bound_ns=bound) for row in own]
    return rows


def _run(name: str, problem: RematProblem, planner: Planner, position: float) -> Row:
    """One planner on one problem."""
    asked = problem if planner.name in FROM_REFERENCE else replace(problem, reference=None)
    start = _cpu_seconds()
    try:
        result = planner.plan(asked)
    except Exception as error:  # a planner that fails is a row of the table, and the others go on
        result = PlanResult(PlanStatus.FAILED, planner.name, None, stats=(("error", repr(error)),))
    seconds = _cpu_seconds() - start
    note = ", ".join(f"{key} {value}" for key, value in result.stats)
    row = Row(
        instance=name,
        ops=len(problem.graph.ops),
        step_ns=problem.costs.step_ns,
        position=position,
        budget_bytes=problem.budget_bytes,
        planner=planner.name,
        status=result.status.value,
        peak_bytes=result.peak_bytes,
        added_ns=result.added_ns,
        bound_ns=result.lower_bound_ns,
        seconds=seconds,
        note=note,
    )
    if row.fits and result.plan is not None and (found := verify(asked, result.plan, result.peak_bytes)):
        return replace(row, status="error", note=f"refused by the verifier: {found[0]}")
    return row


def _cpu_seconds() -> float:
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


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", nargs="*", default=["*"], help="globs of instance names")
    parser.add_argument("--planners", nargs="*", default=list(planner_names()), choices=planner_names())
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--short", action="store_true", help="small instances at 25 %% alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    patterns = ["*_small*"] if options.short else options.instances
    positions = [0.25] if options.short else options.positions
    planners = [make_planner(name) for name in options.planners]
    rows: list[Row] = []
    start = time.time()
    paths = {path for pattern in patterns for path in instance_paths(pattern)}
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path.name)):
        own = run_instance(instance_name(path), read_problem(path), planners, positions)
        rows += own
        print("\n".join(table(own)), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=0) + "\n")
    if options.plot:
        plot(rows, options.plot)
    print("\n".join(["", *summary(rows)]))
    worse = violations(rows)
    print(f"\nauto is beaten in {len(worse)} of {len(by_case(rows))} cases ({time.time() - start:.0f} s in all)")
    print("\n".join(f"  VIOLATION {text}" for text in worse))


if __name__ == "__main__":
    main()
