"""The planner `ilp` on graphs that are too large for the program of all executions: what it adds to `auto`.

    python -m studies.optima.large_programs [--instances '*'] [--least 100] [--largest 700] [--positions 0.25 0.5 0.75]
                                            [--limit 20] [--json OUT.json]

Budgets stand at positions between the smallest peak that `auto` finds (0) and the peak of saving everything (1).  *All*
are the executions that the program of the whole space decides about, which is never built where they are more than
`max_executions`.  *Bounds* are those of the largest program that is solved.  The bound is the better one of that of
`ilp` (for plans of its space) and that of `remat_passes.bounds` for plans in the order of the graph; it is of no plan
in another order.  Every plan passes the verifier.  Times are modelled, in percent of a step; seconds are CPU time.
With a JSON file, rows that it has are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from instruments.make_instances import instances
from instruments.planner_rows import cpu_seconds
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.lower_bound import QUICK, lower_bound_ns
from remat_passes.exact.space import OutsideSpace, Reductions
from remat_passes.exact.stages import space_of
from remat_passes.planning.auto import Auto
from remat_passes.planning.ilp import Ilp
from remat_passes.planning.save_all import SaveAll

POSITIONS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Row:
    """One problem at one budget; times in percent of its step."""

    problem: str
    ops: int
    position: float
    budget_bytes: int
    all_executions: int
    bound_executions: int
    auto_percent: float
    ilp_percent: float
    bound_percent: float
    proven: bool
    other_order: bool
    auto_seconds: float
    ilp_seconds: float

    def line(self) -> str:
        """The row of the table."""
        shown = [f"{self.auto_percent:.3f}", f"{self.ilp_percent:.3f}", f"{self.bound_percent:.3f}"]
        if self.ilp_percent < self.auto_percent:
            shown[1] = f"**{shown[1]}**"
        if self.proven:
            shown[2] = "optimal"
        # What is proven of plans in one order says nothing of one in another.
        shown[2] += " (kept order)" if self.other_order else ""
        return (
            f"| {self.problem} | {self.ops} | {100 * self.position:.0f} % | {self.all_executions} "
            f"| {self.bound_executions} | {' | '.join(shown)} | {self.auto_seconds} | {self.ilp_seconds} |"
        )


HEAD = (
    "| problem | operators | budget | all | bounds | `auto` % | `ilp` % | bound % | `auto` s | `ilp` s |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def rows_of(name: str, problem: RematProblem, positions: Sequence[float], planner: Ilp) -> Iterator[Row]:
    """A row for each position."""
    bare = replace(problem, reference=None)
    high = SaveAll().plan(bare).peak_bytes
    low = Auto().smallest_peak(replace(bare, budget_bytes=0)).peak_bytes
    for position in positions:
        yield measure(name, replace(bare, budget_bytes=low + round(position * (high - low))), position, planner)


def measure(name: str, asked: RematProblem, position: float, planner: Ilp) -> Row:
    """The row of one budget; stops where a plan is invalid, or worse than that of `auto`."""
    began = cpu_seconds()
    auto = Auto().plan(asked)
    between = cpu_seconds()
    found = planner.plan(asked)
    ended = cpu_seconds()
    assert found.plan is not None
    if broken := verify(asked, found.plan, found.peak_bytes):
        raise SystemExit(f"{name}: {broken[0]}")
    fits = auto.peak_bytes <= asked.budget_bytes
    if fits and (found.status is PlanStatus.INFEASIBLE or found.added_ns > auto.added_ns):
        raise SystemExit(f"{name}: worse than auto")
    stats, step_ns = dict(found.stats), asked.costs.step_ns
    bound_ns = max(found.lower_bound_ns, lower_bound_ns(asked, QUICK, OrderClass.JOINT).bound_ns)
    try:
        executions = space_of(asked, Reductions()).executions
    except OutsideSpace:
        executions = 0
    return Row(
        name,
        len(asked.graph.ops),
        position,
        asked.budget_bytes,
        executions,
        int(stats.get("executions", 0)),
        round(100 * auto.added_ns / step_ns, 3) if fits else float("inf"),
        round(100 * found.added_ns / step_ns, 3),
        round(100 * bound_ns / step_ns, 3),
        found.status is PlanStatus.OPTIMAL,
        _reorders(asked, found.plan.steps),
        round(between - began, 1),
        round(ended - between, 1),
    )


def _reorders(problem: RematProblem, steps: Sequence[int]) -> bool:
    """Whether forward or backward operators first run in another order than the graph's."""
    graph = problem.graph
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        placed = [op for op in dict.fromkeys(steps) if graph.ops[op].phase is phase]
        if placed != sorted(placed):
            return True
    return False


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", default="*", help="glob of instance names")
    parser.add_argument("--least", type=int, default=100, help="operators of the smallest graph")
    parser.add_argument("--largest", type=int, default=700, help="operators of the largest graph")
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--limit", type=float, default=20.0, help="`time_limit` of `ilp`")
    parser.add_argument("--json", type=Path, help="file of rows, which is written after each problem")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.json is not None and options.json.exists():
        rows = [Row(**row) for row in json.loads(options.json.read_text(encoding="utf-8"))]
    done = {(row.problem, row.position) for row in rows}
    print(HEAD)
    for name, problem in sorted(instances(options.instances), key=lambda one: len(one[1].graph.ops)):
        left = [position for position in options.positions if (name, position) not in done]
        if not left or not options.least <= len(problem.graph.ops) <= options.largest:
            continue
        for row in rows_of(name, problem, left, Ilp(time_limit=options.limit)):
            rows.append(row)
            print(row.line(), flush=True)
            rows.sort(key=lambda one: (one.ops, one.problem, one.position))
            if options.json is not None:
                text = "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"
                options.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
