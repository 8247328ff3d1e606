"""Frontier of a planner on stored problems: added time at positions between the smallest peak and no recomputation.

    python -m studies.bounds.planner_frontier PROBLEMS [--planner auto] [--reference TABLE.json] [--json OUT.json]

PROBLEMS is a folder (or a file) of problems as JSON, ``*.json`` of `remat_compiler.ir.json_form`, or of pickled
``(TrainingGraph, CostTable)`` pairs, ``*.pkl``, which are only to be read from where they are trusted.  A reference
table is JSON, ``{"gpt2": {"0.05": [budget in MB, added %]}}``: those budgets are then planned as well, side by side.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.json_form import loads
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

POSITIONS = (0.0, 0.05, 0.25, 0.5, 0.75)
Reference = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One plan.

    Attributes:
        problem: Name of the problem.
        ops: Its operators.
        position: 0 at the smallest peak found, 1 at no recomputation; of the reference where `reference` is set.
        budget_bytes: Budget.
        peak_bytes: Peak of the plan.
        added_percent: Added time in percent of the step.
        reference: Added time of the reference at this budget, or `None`.
        status: How the planner ended.
        seconds: CPU time of planning.
    """

    problem: str
    ops: int
    position: float
    budget_bytes: int
    peak_bytes: int
    added_percent: float
    reference: float | None
    status: str
    seconds: float


def stored_problems(path: Path) -> Iterator[tuple[str, RematProblem]]:
    """Name and problem of every file."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.suffix == ".json":
            yield file.stem, loads(RematProblem, file.read_text())
        elif file.suffix == ".pkl":
            graph, costs = pickle.loads(file.read_bytes())
            assert isinstance(graph, TrainingGraph)
            assert isinstance(costs, CostTable)
            yield file.stem, RematProblem(graph, costs, 1 << 60)


def frontier(name: str, problem: RematProblem, planner: Auto, reference: Reference) -> Iterator[Row]:
    """Plans at every position, of this problem's own range and of the reference's."""
    high = SaveAll().plan(problem).peak_bytes
    lowest = planner.smallest_peak(replace(problem, budget_bytes=0))
    print(f"{name}: {len(problem.graph.ops)} ops, {lowest.peak_bytes / 1e6:.2f} to {high / 1e6:.2f} MB")
    for position in POSITIONS:
        own = int(lowest.peak_bytes + position * (high - lowest.peak_bytes))
        yield _row(name, problem, planner, position, own, None)
        if str(position) in reference.get(name, {}):
            megabytes, percent = reference[name][str(position)]
            yield _row(name, problem, planner, position, int(megabytes * 1e6), percent)


def _row(name: str, problem: RematProblem, planner: Auto, position: float, budget: int, reference: float | None) -> Row:
    asked = replace(problem, budget_bytes=budget)
    start = time.thread_time()
    result = planner.plan(asked)
    seconds = time.thread_time() - start
    assert result.plan is not None
    if result.status is not PlanStatus.INFEASIBLE and (found := verify(asked, result.plan, result.peak_bytes)):
        raise SystemExit(f"{name} at {budget} bytes: {found[0]}")
    percent = 100 * result.added_ns / max(problem.costs.step_ns, 1)
    row = Row(
        problem=name,
        ops=len(problem.graph.ops),
        position=position,
        budget_bytes=budget,
        peak_bytes=result.peak_bytes,
        added_percent=percent,
        reference=reference,
        status=result.status.value,
        seconds=seconds,
    )
    against = "" if reference is None else f"  reference {reference:6.1f} %"
    print(
        f"  {position:4.2f}  {budget / 1e6:8.2f} MB  peak {row.peak_bytes / 1e6:8.2f}  "
        f"+{percent:7.2f} %{against}  {seconds:5.2f} s  {row.status}",
        flush=True,
    )
    return row


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path)
    parser.add_argument("--effort", type=int, default=Auto().effort, help="work per operator, see Auto")
    parser.add_argument("--time-limit", type=float, default=Auto().time_limit, help="seconds, see Auto")
    parser.add_argument("--only", nargs="*", help="names of the problems to plan")
    parser.add_argument("--reference", type=Path, help="JSON table to compare with")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    reference: Reference = json.loads(options.reference.read_text()) if options.reference else {}
    rows: list[Row] = []
    for name, problem in stored_problems(options.problems):
        if not options.only or name in options.only:
            rows += frontier(name, problem, Auto(effort=options.effort, time_limit=options.time_limit), reference)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
