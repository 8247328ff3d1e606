"""Every registered planner on every instance, side by side: added time, peak, gap to the bound, CPU time, status.

    python benchmarks/planners.py [--instances 'gpt2_*'] [--planners auto dtr] [--positions 0.05 0.5] [--short]
                                  [--json OUT.json] [--resume] [--plot OUT.png]

Budgets stand at positions between the smallest peak that `auto` finds (0) and the peak of saving everything (1).  A
reference partition is shown only to the planners that are made from one; the backend, too, plans without.  The bound
is the best that any planner proved or `remat_passes.bounds` proves for that budget.  A summary counts how often each
planner is the best, within 1 % of the best, and without a plan that fits; where another planner beats `auto` is told
in full.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from instruments.make_instances import instance_name, instance_paths
from instruments.planner_rows import Row, by_case, cpu_seconds, plot, read_rows, summary, table, violations, write_rows
from instruments.problem_file import read_problem
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.lower_bound import lower_bound_ns
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner, planner_names

POSITIONS = (0.05, 0.12, 0.25, 0.5, 0.75)
FROM_REFERENCE = frozenset({"min_cut", "knapsack"})
"""Planners that are made from torch's own partition."""


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
    start = cpu_seconds()
    try:
        result = planner.plan(asked)
    except Exception as error:  # a planner that fails is a row of the table, and the others go on
        result = PlanResult(PlanStatus.FAILED, planner.name, None, stats=(("error", repr(error)),))
    seconds = cpu_seconds() - start
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
        seconds=round(seconds, 3),
        note=note,
    )
    if row.fits and result.plan is not None and (found := verify(asked, result.plan, result.peak_bytes)):
        return replace(row, status="error", note=f"refused by the verifier: {found[0]}")
    return row


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", nargs="*", default=["*"], help="globs of instance names")
    parser.add_argument("--planners", nargs="*", default=list(planner_names()), choices=planner_names())
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--short", action="store_true", help="small instances at 25 %% alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="plan only the instances that the JSON file lacks")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume needs --json, the file to go on with")
    patterns = ["*_small*"] if options.short else options.instances
    positions = [0.25] if options.short else options.positions
    planners = [make_planner(name) for name in options.planners]
    rows = read_rows(options.json) if options.resume and options.json.exists() else []
    known = {row.instance for row in rows}
    start = time.time()
    paths = {path for pattern in patterns for path in instance_paths(pattern)}
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path.name)):
        if instance_name(path) in known:
            continue
        own = run_instance(instance_name(path), read_problem(path), planners, positions)
        rows += own
        print("\n".join(table(own)), flush=True)
        if options.json:
            write_rows(options.json, rows)
    if options.plot:
        plot(rows, options.plot)
    print("\n".join(["", *summary(rows)]))
    worse = violations(rows)
    print(f"\nauto is beaten in {len(worse)} of {len(by_case(rows))} cases ({time.time() - start:.0f} s in all)")
    print("\n".join(f"  VIOLATION {text}" for text in worse))


if __name__ == "__main__":
    main()
