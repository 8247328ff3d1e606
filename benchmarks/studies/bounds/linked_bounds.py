"""What linked instants change: the lower bound of single instants and that of linked ones, and the plans of `auto`.

    python -m studies.bounds.linked_bounds [PROBLEMS ...] [--instances 'gpt2_*'] [--largest 1100] [--plans-to 450]
                                           [--positions 0.05 0.25] [--json OUT.json]

Budgets stand at positions between the smallest peak that `auto` finds (0) and the peak of saving everything (1).
PROBLEMS are folders of problems as JSON (`capture_problems.py`); without them the instances of `benchmarks/instances`
are taken.  *Before* is `auto` without the sequences of linked instants, side by side; the bounds hold for plans in any
order.  Every plan passes the verifier, which shares no code with the planners, and no bound may be above a plan.  With
a JSON file, problems that it has are not run again.  Times are modelled; seconds are CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

from instruments.make_instances import instances
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.lower_bound import QUICK, Bound, lower_bound_ns
from remat_passes.planning import portfolio
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from studies.bounds.planner_frontier import stored_problems

POSITIONS = (0.05, 0.12, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Row:
    """One budget.

    Attributes:
        problem: Name of the problem.
        ops: Its operators.
        position: Position of the budget.
        budget_bytes: Budget.
        step_ns: Time of its step without recomputation.
        single_ns: Bound of single instants.
        linked_ns: Bound of linked ones.
        how: What proved it.
        bound_seconds: CPU seconds of both, the first one first.
        added_ns: Added time of `auto` without and with the sequences of linked instants; `None` where it was not run,
            or found no plan that fits.
        plan_seconds: CPU seconds of both.
    """

    problem: str
    ops: int
    position: float
    budget_bytes: int
    step_ns: int
    single_ns: int
    linked_ns: int
    how: str
    bound_seconds: tuple[float, float]
    added_ns: tuple[int | None, int | None]
    plan_seconds: tuple[float, float]


def rows_of(name: str, problem: RematProblem, positions: Sequence[float], planned: bool) -> Iterator[Row]:
    """A row for each position."""
    bare = replace(problem, reference=None)
    high = SaveAll().plan(bare).peak_bytes
    low = Auto().smallest_peak(replace(bare, budget_bytes=0)).peak_bytes
    for position in positions:
        asked = replace(bare, budget_bytes=low + round(position * (high - low)))
        single, single_seconds = _bounded(asked, linked=0)
        linked, linked_seconds = _bounded(asked, linked=QUICK.linked)
        found, seconds = [], []
        for with_seeds in (False, True) if planned else ():
            result, taken = _planned(asked, with_seeds)
            fits = _checked(f"{name} at {position}", asked, result, (single, linked))
            found.append(result.added_ns if fits else None)
            seconds.append(taken)
        yield Row(
            problem=name,
            ops=len(problem.graph.ops),
            position=position,
            budget_bytes=asked.budget_bytes,
            step_ns=problem.costs.step_ns,
            single_ns=single.bound_ns,
            linked_ns=linked.bound_ns,
            how=linked.how,
            bound_seconds=(single_seconds, linked_seconds),
            added_ns=(found[0], found[1]) if planned else (None, None),
            plan_seconds=(seconds[0], seconds[1]) if planned else (0.0, 0.0),
        )


def _bounded(asked: RematProblem, linked: int) -> tuple[Bound, float]:
    start = time.process_time()
    return lower_bound_ns(asked, replace(QUICK, linked=linked)), round(time.process_time() - start, 3)


def _planned(asked: RematProblem, with_seeds: bool) -> tuple[PlanResult, float]:
    """The plan of `auto`, and its CPU seconds."""
    start = time.process_time()
    if with_seeds:
        return Auto().plan(asked), round(time.process_time() - start, 2)
    # A graph that is too large to be linked is planned, and bounded, by what was there without.
    with mock.patch.object(portfolio, "QUICK", replace(QUICK, linked_operators=0)):
        return Auto().plan(asked), round(time.process_time() - start, 2)


def _checked(what: str, asked: RematProblem, result: PlanResult, bounds: Sequence[Bound]) -> bool:
    """Whether the plan fits; stop where it is invalid, or below a bound."""
    assert result.plan is not None, what
    if result.peak_bytes > asked.budget_bytes:
        return False
    if found := verify(asked, result.plan, result.peak_bytes):
        raise SystemExit(f"{what}: {found[0]}")
    if any(bound.infeasible or bound.bound_ns > result.added_ns for bound in bounds):
        raise SystemExit(f"{what}: a bound forbids the plan")
    return True


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Median and greatest gap to both bounds by position, where something is added; and what became of the plans."""
    for position in sorted({row.position for row in rows}):
        here = [row for row in rows if row.position == position and row.added_ns[1]]
        gaps = [_gaps(row) for row in here]
        if not here:
            continue
        cells = [f"median {statistics.median(one):6.1f} %, greatest {max(one):6.1f} %" for one in zip(*gaps)]
        pairs = [(row.added_ns[0], row.added_ns[1]) for row in here if row.added_ns[0] and row.added_ns[1]]
        better, worse = sum(new < old for old, new in pairs), sum(new > old for old, new in pairs)
        proven = [sum(gap[i] < 0.1 for gap in gaps) for i in (0, 2)]
        work = [sum(row.plan_seconds[i] for row in here) for i in (0, 1)]
        names = ("before", "new bound", "new bound and plan")
        yield f"{100 * position:3.0f} %, {len(here)} cases: " + "; ".join(f"{n} {c}" for n, c in zip(names, cells))
        yield (
            f"       plans: {better} cheaper, {worse} dearer, {work[0]:.0f} -> {work[1]:.0f} s;"
            f" within 0.1 % of the bound: {proven[0]} -> {proven[1]}"
        )


def _gaps(row: Row) -> tuple[float, float, float]:
    """Added time above the bound in percent of the added time: before, with the new bound, with the new plan, too."""
    old, new = row.added_ns
    assert new is not None
    before = new if old is None else old
    cells = ((before, row.single_ns), (before, row.linked_ns), (new, row.linked_ns))
    first, second, third = (100 * (1 - bound / added) if added else 0.0 for added, bound in cells)
    return first, second, third


def _line(row: Row) -> str:
    added = " -> ".join("-" if ns is None else f"{100 * ns / row.step_ns:.2f}" for ns in row.added_ns)
    bounds = " -> ".join(f"{100 * ns / row.step_ns:.2f}" for ns in (row.single_ns, row.linked_ns))
    seconds = f"{row.plan_seconds[0]:.1f} -> {row.plan_seconds[1]:.1f} s, {row.bound_seconds[1]:.2f} s"
    return f"{row.problem:32} {row.ops:5} {row.position:4.2f}  added {added:18} bound {bounds:16} {seconds}  {row.how}"


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path)
    parser.add_argument("--instances", default="*", help="glob of instance names, where no problems are named")
    parser.add_argument("--largest", type=int, default=QUICK.linked_operators, help="operators of the largest graph")
    parser.add_argument("--plans-to", type=int, default=1 << 30, help="operators of the largest graph that is planned")
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--json", type=Path, help="rows, which are written after each problem and not run again")
    options = parser.parse_args()
    rows = read_rows(options.json) if options.json and options.json.exists() else []
    known = {row.problem for row in rows}
    named = [(f"{folder.name}/{name}", p) for folder in options.problems for name, p in stored_problems(folder)]
    for name, problem in sorted(named or instances(options.instances), key=lambda one: len(one[1].graph.ops)):
        operators = len(problem.graph.ops)
        if name in known or operators > options.largest:
            continue
        for row in rows_of(name, problem, options.positions, operators <= options.plans_to):
            rows.append(row)
            print(_line(row), flush=True)
        if options.json:
            options.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    print("\n".join(table(rows)))


def read_rows(path: Path) -> list[Row]:
    """Rows that an earlier run wrote."""
    pairs = ("bound_seconds", "added_ns", "plan_seconds")
    return [
        Row(**{key: tuple(v) if key in pairs else v for key, v in one.items()}) for one in json.loads(path.read_text())
    ]


if __name__ == "__main__":
    main()
