"""Proven optima of small graphs of real models, by the planner `ilp`, beside what `auto` finds.

    python -m studies.optima.optima [--instances '*_small_decomposed'] [--limit 300] [--solver highs] [--json OUT]

Budgets stand at 5, 12, 25 and 50 % of the way from the smallest peak that `auto` found to the peak without
recomputation; those of earlier results are used again.  Both planners keep the order of first executions, since the
proof is for that order.  Figures are added time in percent of the time of a step; a row whose bound equals its best
plan is proven.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from instruments.make_instances import instance_name, instance_paths
from instruments.planner_rows import cpu_seconds
from instruments.problem_file import read_problem
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.auto import Auto
from remat_passes.planning.ilp import Ilp
from remat_passes.planning.save_all import SaveAll

POSITIONS = (0.50, 0.25, 0.12, 0.05)


@dataclass(frozen=True, slots=True)
class Row:
    """One instance at one budget; times in percent of a step's time."""

    instance: str
    position: float
    budget_bytes: int
    proven: bool
    auto_percent: float
    best_percent: float
    bound_percent: float
    cpu_seconds: float
    rounds: int
    windows: int
    nodes: int
    solver: str
    states: int = 0
    proof: str = ""


def measure(name: str, problem: RematProblem, position: float, budget: int, planner: Ilp) -> Row:
    """Solve `problem` at one budget."""
    problem = replace(problem, budget_bytes=budget)
    auto = Auto(reorders=False).plan(problem)
    began = cpu_seconds()
    found = planner.plan(problem)
    spent = cpu_seconds() - began
    stats = dict(found.stats)

    def percent(added_ns: int) -> float:
        return round(100 * added_ns / problem.costs.step_ns, 3)

    return Row(
        name,
        position,
        budget,
        found.status is PlanStatus.OPTIMAL,
        percent(auto.added_ns),
        percent(found.added_ns),
        percent(found.lower_bound_ns if found.status is not PlanStatus.OPTIMAL else found.added_ns),
        round(spent, 1),
        int(stats.get("rounds", 0)),
        int(stats.get("windows", 0)),
        int(stats.get("nodes", 0)),
        stats.get("solver", ""),
        int(stats.get("states", 0)),
        stats.get("proof", ""),
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that this program wrote."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def budget_at(problem: RematProblem, position: float) -> int:
    """Bytes at `position` between the smallest peak that `auto` finds and that of saving everything."""
    low, full = Auto(reorders=False).smallest_peak(problem).peak_bytes, SaveAll().plan(problem).peak_bytes
    return int(low + position * (full - low))


def main() -> None:
    """Solve all chosen instances, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", default="*_small_decomposed", help="glob of instance names")
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each row")
    parser.add_argument("--solver", default="highs", choices=("highs", "cbc"))
    parser.add_argument("--json", type=Path, help="file to write, row by row; rows in it already are not solved again")
    parser.add_argument(
        "--budgets",
        type=Path,
        default=Path(__file__).parents[2] / "results" / "optima.json",
        help="earlier results whose budgets to use again, so that rows stay comparable while auto improves",
    )
    options = parser.parse_args()
    planner = Ilp(options.solver, time_limit=options.limit, max_executions=1_000_000)
    rows: list[Row] = []
    if options.json is not None and options.json.exists():
        rows = read_rows(options.json)
    budgets = {(row.instance, row.position): row.budget_bytes for row in read_rows(options.budgets)}
    done = {(row.instance, row.position) for row in rows}
    print("| instance | position | auto % | best % | bound % | proven | CPU s | states | rounds | windows | nodes |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for position in options.positions:
        for path in instance_paths(options.instances):
            name = instance_name(path)
            if (name, position) in done:
                continue
            problem = replace(read_problem(path), reference=None)
            budget = budgets.get((name, position)) or budget_at(problem, position)
            row = measure(name, problem, position, budget, planner)
            rows.append(row)
            print(
                f"| {name} | {position:.2f} | {row.auto_percent} | {row.best_percent} | {row.bound_percent} "
                f"| {'yes' if row.proven else 'no'} | {row.cpu_seconds} | {row.states} "
                f"| {row.rounds} | {row.windows} | {row.nodes} |",
                flush=True,
            )
            if options.json is not None:
                rows.sort(key=lambda r: (r.instance, -r.position))
                text = json.dumps({"limit_s": options.limit, "rows": [asdict(r) for r in rows]}, indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
