"""The smallest peaks that `auto` reaches, and what they cost, before and after a change.

    python benchmarks/floors.py measure OUT.json [--instances 'gpt2_*'] [--slowdown 2.0] [--at BEFORE.json]
    python benchmarks/floors.py table BEFORE.json AFTER.json

`measure` asks `auto` for the smallest peak of each instance, as the budget "min" does; with `--at`, also for a plan
within the smallest peak of an earlier file.  Run it by the sources of both revisions (``git worktree add``, and
``PYTHONPATH`` with both packages); rows that the file has already are not measured again.  No plan peaks below
"proved", the largest working set of one operator.  Times are added time in percent of the step's; `--slowdown` limits
them as `max_slowdown` does.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from make_instances import instance_name, instance_paths
from planner_rows import cpu_seconds
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.problem_file import read_problem
from remat_compiler.simulate.floor import peak_floor
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll


@dataclass(frozen=True, slots=True)
class Row:
    """One instance.

    Attributes:
        instance: Its name.
        ops: Its operators.
        all_bytes: Peak of the step that recomputes nothing.
        proved_bytes: Bytes below which no plan peaks.
        smallest_bytes: Smallest peak found.
        percent: Added time of that plan, in percent of the step.
        seconds: CPU seconds of planning it.
        at_bytes: Another budget; 0 for none.
        at_percent: Added time of the plan for that, -1 if there is none.
    """

    instance: str
    ops: int
    all_bytes: int
    proved_bytes: int
    smallest_bytes: int
    percent: float
    seconds: float
    at_bytes: int = 0
    at_percent: float = -1.0


def measure(name: str, problem: RematProblem, at_bytes: int) -> Row:
    """The row of one instance; `at_bytes`: see `Row`."""
    began = cpu_seconds()
    lowest = Auto().plan(replace(problem, budget_bytes=1))
    spent = cpu_seconds() - began
    at_percent = -1.0
    if at_bytes:
        found = Auto().plan(replace(problem, budget_bytes=at_bytes))
        at_percent = _percent(problem, found.added_ns) if found.peak_bytes <= at_bytes else -1.0
    return Row(
        name,
        len(problem.graph.ops),
        SaveAll().plan(problem).peak_bytes,
        peak_floor(problem.graph, problem.costs).peak_bytes,
        lowest.peak_bytes,
        _percent(problem, lowest.added_ns),
        round(spent, 2),
        at_bytes,
        at_percent,
    )


def _percent(problem: RematProblem, added_ns: int) -> float:
    return round(100 * added_ns / problem.costs.step_ns, 2)


def read_rows(path: Path | None) -> dict[str, Row]:
    """The rows of a file by instance; empty without one."""
    if path is None or not path.exists():
        return {}
    return {row["instance"]: Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))}


def table(before: dict[str, Row], after: dict[str, Row]) -> str:
    """Both side by side, in MB and percent; instances that only one has are left out."""
    lines = [
        "| instance | everything saved | proved | smallest, before | after | added there, before | after, same bytes "
        "| after, its own | CPU s, before | after |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        same = f"{new.at_percent:.1f} %" if new.at_bytes == old.smallest_bytes and new.at_percent >= 0 else "–"
        sizes = (old.all_bytes, old.proved_bytes, old.smallest_bytes, new.smallest_bytes)
        cells = [name, *(f"{size / 1e6:.3f}" for size in sizes)]
        cells += [f"{old.percent:.1f} %", same, f"{new.percent:.1f} %", f"{old.seconds:.1f}", f"{new.seconds:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print a table of two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--instances", nargs="*", default=["*"], help="globs of instance names")
    measuring.add_argument("--slowdown", type=float, help="longest step, relative to one without recomputation")
    measuring.add_argument("--at", type=Path, help="earlier rows, whose smallest peaks are asked for as budgets")
    showing = commands.add_parser("table")
    showing.add_argument("before", type=Path)
    showing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        print(table(read_rows(options.before), read_rows(options.after)))
        return
    earlier, rows = read_rows(options.at), read_rows(options.out)
    for path in (path for pattern in options.instances for path in instance_paths(pattern)):
        name = instance_name(path)
        if name in rows:
            continue
        problem = replace(read_problem(path), reference=None)
        if options.slowdown is not None:
            problem = replace(problem, max_added_ns=int((options.slowdown - 1.0) * problem.costs.step_ns))
        rows[name] = measure(name, problem, earlier[name].smallest_bytes if name in earlier else 0)
        print(rows[name], flush=True)
        options.out.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
