"""How far plans may be from the cheapest: added time of `auto`, the proven lower bound, and the gap.

    python -m studies.bounds.bounds PROBLEMS REFERENCE.json [--only gpt2 unet] [--thorough] [--json OUT]
                                    [--plot OUT.png]

PROBLEMS is a folder as for `planner_frontier.py`, of JSON files.  The reference gives the budgets: ``{"gpt2":
{"0.05": [budget in MB, added %, bound %]}}``, by position between the smallest peak once found (0) and the peak without
recomputation (1); its plans and bounds are printed beside, and a bound of `null` was not known.  Each budget is planned
and bounded twice: with the graph's own order of the backward (class ``joint``), and with any order (``any``, whose
bound holds for all plans, so for those of the class ``joint`` too).

The bound that reports state is always computed.  ``--thorough`` goes on, stage by stage, until the gap is small.  A
bound does not depend on the planner: where OUT has rows of the same problem, budget and class, their stages are
not run again, so that a second run after a change of `auto` costs little more than planning.  ``--fresh`` runs all.
Times are modelled; seconds are CPU time, those of a solver's own process left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.lower_bound import QUICK, THOROUGH, BoundEffort, lower_bound_ns
from remat_passes.planning.auto import Auto
from studies.bounds.planner_frontier import stored_problems

Reference = dict[str, dict[str, tuple[float, float, float | None]]]
POSITIONS = ("0.05", "0.25", "0.5", "0.75")
STAGES: dict[str, BoundEffort] = {"default": QUICK, "closed": replace(THOROUGH, linked=0), "linked": THOROUGH}
"""Efforts by name, each at least as strong as the one before."""
ENOUGH = {"default": 0.5, "closed": 4.0}
"""Gap in percent at which no stage is run after this one; a linked program takes minutes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One budget and one class of plans.

    Attributes:
        problem: Name of the problem.
        digest: Of the file of the problem.
        ops: Its operators.
        position: Position of the budget in the reference's range.
        budget_bytes: Budget.
        order: Class of plans, see `OrderClass`.
        added_percent: Added time of the plan, in percent of the step; infinite where none fits.
        bound_ns: Proven lower bound of it.
        bound_percent: The same in percent of the step.
        gap_percent: Their difference in percent of the added time; 0 where nothing is added.
        how: What proved the bound.
        stage: The last stage that was run, see `STAGES`.
        default_bound_ns: The bound that reports state, where `order` is ``any``.
        default_gap_percent: Its gap.
        plan_seconds: CPU seconds of planning.
        bound_seconds: CPU seconds of all stages.
        default_seconds: CPU seconds of the bound that reports state.
        reference_added_percent: Added time of the reference's plan.
        reference_bound_percent: The reference's bound, or `None`.
        moved: Which is better than the reference's by a hundredth of it: the plan, the bound, both, or neither.
    """

    problem: str
    digest: str
    ops: int
    position: float
    budget_bytes: int
    order: str
    added_percent: float
    bound_ns: int
    bound_percent: float
    gap_percent: float
    how: str
    stage: str
    default_bound_ns: int
    default_gap_percent: float
    plan_seconds: float
    bound_seconds: float
    default_seconds: float
    reference_added_percent: float
    reference_bound_percent: float | None
    moved: str


@dataclass(frozen=True, slots=True)
class Proven:
    """Bounds of one problem and class so far.

    Attributes:
        bound_ns: The highest.
        how: What proved it.
        stage: The last stage that was run.
        default_bound_ns: The bound that reports state.
        seconds: CPU seconds of all stages.
        default_seconds: CPU seconds of that of the first.
        infeasible: Proven that no plan keeps the budget.
    """

    bound_ns: int = 0
    how: str = ""
    stage: str = ""
    default_bound_ns: int = 0
    seconds: float = 0.0
    default_seconds: float = 0.0
    infeasible: bool = False

    def after(self, asked: RematProblem, order: OrderClass, stage: str) -> Proven:
        """The same with one stage more."""
        start = time.process_time()
        found = lower_bound_ns(asked, STAGES[stage], order)
        seconds = round(time.process_time() - start, 2)
        first = stage == next(iter(STAGES))
        better = found.bound_ns > self.bound_ns or not self.how
        return Proven(
            bound_ns=max(found.bound_ns, self.bound_ns),
            how=found.how if better else self.how,
            stage=stage,
            default_bound_ns=found.bound_ns if first else self.default_bound_ns,
            seconds=round(self.seconds + seconds, 2),
            default_seconds=seconds if first else self.default_seconds,
            infeasible=self.infeasible or found.infeasible,
        )


def gap_percent(added_ns: int, bound_ns: int) -> float:
    """What a bound leaves open of an added time."""
    return round(100 * (1 - bound_ns / added_ns), 1) if added_ns else 0.0


def proven(
    asked: RematProblem, order: OrderClass, result: PlanResult, stages: Sequence[str], known: Proven, beside: Proven
) -> Proven:
    """`known` with further stages until the gap is small; `beside` is a bound of more plans."""
    ran = stages.index(known.stage) + 1 if known.stage in stages else (len(stages) if known.stage else 0)
    for stage in stages[ran:]:
        best = max(known.bound_ns, beside.bound_ns)
        if known.stage and gap_percent(result.added_ns, best) <= ENOUGH[known.stage]:
            break
        known = known.after(asked, order, stage)
    if beside.bound_ns > known.bound_ns:
        known = replace(known, bound_ns=beside.bound_ns, how=beside.how)
    return known


def rows_of(
    name: str, digest: str, problem: RematProblem, reference: Reference, stages: Sequence[str], old: Sequence[Row]
) -> Iterator[Row]:
    """Both classes at each budget of the reference."""
    for position in POSITIONS:
        megabytes, added, bound = reference[name][position]
        asked = replace(problem, budget_bytes=int(megabytes * 1e6))
        beside = Proven()
        for order, reorders in ((OrderClass.ANY, True), (OrderClass.JOINT, False)):
            start = time.process_time()
            result = Auto(reorders=reorders).plan(asked)
            planned = time.process_time() - start
            found = proven(asked, order, result, stages, _known(old, digest, asked, order), beside)
            _check(f"{name} at {position}, {order.value}", asked, result, found)
            beside = found if order is OrderClass.ANY else beside
            step, fits = max(problem.costs.step_ns, 1), result.peak_bytes <= asked.budget_bytes
            yield Row(
                problem=name,
                digest=digest,
                ops=len(problem.graph.ops),
                position=float(position),
                budget_bytes=asked.budget_bytes,
                order=order.value,
                added_percent=round(100 * result.added_ns / step, 3) if fits else float("inf"),
                bound_ns=found.bound_ns,
                bound_percent=round(100 * found.bound_ns / step, 3),
                gap_percent=gap_percent(result.added_ns, found.bound_ns),
                how=found.how,
                stage=found.stage,
                default_bound_ns=found.default_bound_ns,
                default_gap_percent=gap_percent(result.added_ns, found.default_bound_ns),
                plan_seconds=round(planned, 2),
                bound_seconds=found.seconds,
                default_seconds=found.default_seconds,
                reference_added_percent=added,
                reference_bound_percent=bound,
                moved=_moved(100 * result.added_ns / step, 100 * found.bound_ns / step, added, bound),
            )


def _known(old: Sequence[Row], digest: str, asked: RematProblem, order: OrderClass) -> Proven:
    """What an earlier run proved."""
    for row in old:
        if (row.digest, row.budget_bytes, row.order) == (digest, asked.budget_bytes, order.value):
            return Proven(
                row.bound_ns, row.how, row.stage, row.default_bound_ns, row.bound_seconds, row.default_seconds
            )
    return Proven()


def _check(what: str, asked: RematProblem, result: PlanResult, found: Proven) -> None:
    """Stop where plan and bound contradict each other."""
    fits = result.plan is not None and result.peak_bytes <= asked.budget_bytes
    if result.plan is None or (fits and (verify(asked, result.plan, result.peak_bytes) or found.infeasible)):
        raise SystemExit(f"{what}: no valid plan, or a bound that forbids it")
    if fits and max(found.bound_ns, found.default_bound_ns) > result.added_ns:
        raise SystemExit(f"{what}: bound {found.bound_ns} above the plan's {result.added_ns}")


def _moved(plan: float, bound: float, reference_plan: float, reference_bound: float | None) -> str:
    """What is better than the reference's, which is rounded to a tenth of a percent."""
    better_plan = plan < 0.99 * reference_plan - 0.05
    better_bound = reference_bound is None or bound > 1.01 * reference_bound + 0.05
    return {(True, True): "both", (True, False): "plan", (False, True): "bound"}.get((better_plan, better_bound), "-")


def plot(rows: Sequence[Row], path: Path) -> None:
    """The gap of each row as a bar: what no plan can save, and what is open, of the added time."""
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.problem for row in rows if row.added_percent > 0))
    figure, axes = pyplot.subplots(1, len(POSITIONS), figsize=(13, 0.42 * len(names) + 1.4), sharey=True)
    for axis, position in zip(axes, POSITIONS):
        for order, shift, colour in (("joint", -0.2, "#4878a8"), ("any", 0.2, "#c08040")):
            chosen = {r.problem: r for r in rows if r.order == order and r.position == float(position)}
            gaps = [chosen[n].gap_percent if n in chosen else 0.0 for n in names]
            axis.barh([i + shift for i in range(len(names))], gaps, 0.38, color=colour, label=f"{order} order")
        axis.axvline(4, color="0.6", linewidth=0.7, linestyle=":")
        axis.axvline(20, color="0.6", linewidth=0.7, linestyle="--")
        axis.set_title(f"budget at {100 * float(position):.0f} %", fontsize=10)
        axis.set_xlim(0, max(30, *(row.gap_percent for row in rows)))
        axis.set_xlabel("open, % of the added time", fontsize=9)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[-1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _line(row: Row) -> str:
    return (
        f"{row.problem:14} {row.position:4.2f} {row.budget_bytes / 1e6:8.2f} MB {row.order:6}"
        f" +{row.added_percent:6.2f} %  bound {row.bound_percent:6.2f} %  gap {row.gap_percent:5.1f} %"
        f" (by default {row.default_gap_percent:5.1f} %)"
        f"  reference +{row.reference_added_percent:.1f} / {row.reference_bound_percent}  {row.moved:5}"
        f"  {row.plan_seconds:.1f} + {row.bound_seconds:.1f} s  {row.how}"
    )


def main() -> None:
    """Print the table; write and draw it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path)
    parser.add_argument("reference", type=Path, help="JSON table of budgets, plans and bounds")
    parser.add_argument("--only", nargs="*", help="names of the problems")
    parser.add_argument("--thorough", action="store_true", help="go on where the default bound leaves more open")
    parser.add_argument("--json", type=Path, help="where to write the rows, and where bounds are reused from")
    parser.add_argument("--fresh", action="store_true", help="reuse no bounds")
    parser.add_argument("--plot", type=Path, help="where to draw the gaps")
    options = parser.parse_args()
    reference: Reference = json.loads(options.reference.read_text())
    old = [] if not options.json or not options.json.exists() else read_rows(options.json)
    stages = list(STAGES) if options.thorough else list(STAGES)[:1]
    done: list[Row] = []
    for name, problem in stored_problems(options.problems):
        if name not in reference or (options.only and name not in options.only):
            continue
        digest = hashlib.sha256((options.problems / f"{name}.json").read_bytes()).hexdigest()[:16]
        for row in rows_of(name, digest, problem, reference, stages, [] if options.fresh else old):
            done.append(row)
            print(_line(row), flush=True)
            if options.json:
                fresh = {(row.problem, row.position, row.order) for row in done}
                rest = [row for row in old if (row.problem, row.position, row.order) not in fresh]
                rows = sorted([*done, *rest], key=lambda row: (row.problem, row.position, row.order))
                options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if options.plot:
        plot(read_rows(options.json) if options.json else done, options.plot)


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; those of another form are left out."""
    names = {field.name for field in fields(Row)}
    return [Row(**row) for row in json.loads(path.read_text()) if set(row) == names]


if __name__ == "__main__":
    main()
