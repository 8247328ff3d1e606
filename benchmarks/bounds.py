"""How far plans may be from the cheapest: added time of `auto`, the proven lower bound, and the gap.

    python benchmarks/bounds.py PROBLEMS REFERENCE.json [--only gpt2 unet] [--thorough] [--json OUT.json]

PROBLEMS as for `planner_frontier.py`.  The reference gives the budgets: ``{"gpt2": {"0.05": [budget in MB, added %,
bound %]}}``, by position between the smallest peak once found (0) and the peak without recomputation (1); its plans and
bounds are printed beside, and a bound of `null` was not known.  Each budget is planned and bounded twice: with the
graph's own order of the backward (class ``joint``), and with any order (``any``, whose bound holds for all plans).
Times are modelled; seconds are CPU time, those of a solver's own process left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner_frontier import stored_problems
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.lower_bound import QUICK, THOROUGH, BoundEffort, lower_bound_ns
from remat_passes.planning.auto import Auto

Reference = dict[str, dict[str, tuple[float, float, float | None]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One budget and one class of plans.

    Attributes:
        problem: Name of the problem.
        ops: Its operators.
        position: Position of the budget in the reference's range.
        budget_bytes: Budget.
        order: Class of plans, see `OrderClass`.
        added_percent: Added time of the plan, in percent of the step.
        bound_percent: Proven lower bound of it.
        gap_percent: Their difference in percent of the added time; 0 where nothing is added.
        how: What proved the bound.
        plan_seconds: CPU seconds of planning.
        bound_seconds: CPU seconds of bounding.
        reference_added_percent: Added time of the reference's plan.
        reference_bound_percent: The reference's bound, or `None`.
        moved: Which is better than the reference's by a hundredth of it: the plan, the bound, both, or neither.
    """

    problem: str
    ops: int
    position: float
    budget_bytes: int
    order: str
    added_percent: float
    bound_percent: float
    gap_percent: float
    how: str
    plan_seconds: float
    bound_seconds: float
    reference_added_percent: float
    reference_bound_percent: float | None
    moved: str


def rows_of(name: str, problem: RematProblem, reference: Reference, effort: BoundEffort) -> Iterator[Row]:
    """Both classes at each budget of the reference."""
    for position, (megabytes, added, bound) in sorted(reference[name].items(), key=lambda item: float(item[0])):
        asked = replace(problem, budget_bytes=int(megabytes * 1e6))
        for order, reorders in ((OrderClass.JOINT, False), (OrderClass.ANY, True)):
            start = time.process_time()
            result = Auto(reorders=reorders).plan(asked)
            planned = time.process_time()
            found = lower_bound_ns(asked, effort, order)
            bounded = time.process_time()
            fits = result.plan is not None and result.peak_bytes <= asked.budget_bytes
            if result.plan is None or (fits and (verify(asked, result.plan, result.peak_bytes) or found.infeasible)):
                raise SystemExit(f"{name} at {position}: no valid plan, or a bound that forbids it")
            if fits and found.bound_ns > result.added_ns:
                raise SystemExit(f"{name} at {position}: bound {found.bound_ns} above the plan's {result.added_ns}")
            step = max(problem.costs.step_ns, 1)
            plan_percent, bound_percent = 100 * result.added_ns / step, 100 * found.bound_ns / step
            yield Row(
                problem=name,
                ops=len(problem.graph.ops),
                position=float(position),
                budget_bytes=asked.budget_bytes,
                order=order.value,
                added_percent=round(plan_percent, 3) if fits else float("inf"),
                bound_percent=round(bound_percent, 3),
                gap_percent=round(100 * (1 - bound_percent / plan_percent), 1) if plan_percent else 0.0,
                how=found.how,
                plan_seconds=round(planned - start, 2),
                bound_seconds=round(bounded - planned, 2),
                reference_added_percent=added,
                reference_bound_percent=bound,
                moved=_moved(plan_percent, bound_percent, added, bound),
            )


def _moved(plan: float, bound: float, reference_plan: float, reference_bound: float | None) -> str:
    """What is better than the reference's, which is rounded to a tenth of a percent."""
    better_plan = plan < 0.99 * reference_plan - 0.05
    better_bound = reference_bound is None or bound > 1.01 * reference_bound + 0.05
    return {(True, True): "both", (True, False): "plan", (False, True): "bound"}.get((better_plan, better_bound), "-")


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path)
    parser.add_argument("reference", type=Path, help="JSON table of budgets, plans and bounds")
    parser.add_argument("--only", nargs="*", help="names of the problems")
    parser.add_argument("--thorough", action="store_true", help="more instants, and branch and bound at the best")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    reference: Reference = json.loads(options.reference.read_text())
    rows: list[Row] = []
    for name, problem in stored_problems(options.problems):
        if name not in reference or (options.only and name not in options.only):
            continue
        for row in rows_of(name, problem, reference, THOROUGH if options.thorough else QUICK):
            rows.append(row)
            print(
                f"{name:14} {row.position:4.2f} {row.budget_bytes / 1e6:8.2f} MB {row.order:6}"
                f" +{row.added_percent:6.2f} %  bound {row.bound_percent:6.2f} %  gap {row.gap_percent:5.1f} %"
                f"  reference +{row.reference_added_percent:.1f} / {row.reference_bound_percent}  {row.moved:5}"
                f"  {row.plan_seconds:.1f} + {row.bound_seconds:.1f} s  {row.how}",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
