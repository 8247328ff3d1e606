"""Plans taken again at other lengths: how often, how fast, and how far from a plan that is solved for the length.

    python -m studies.changing_lengths.plan_cache --models gpt2 t5 --lengths 48 --json OUT.json --plot OUT.png

A model is asked to train under one budget, a fraction of the peak that its longest batch has without one, on lengths
drawn from a seed, in the order in which they are drawn.  Each distinct length is one problem (as with
``dynamic=False``), captured once.  The cache is empty at first and asked in that order; the same length again is an
exact hit.  Beside each answer stands what the planner solves for that length alone.

*loss* is the added time of the taken plan less that of the solved one, in percent of the step: what a similar hit
costs; it is below 0 where the plan of another length is better than the planner's own.  *worth it, refused* counts
misses of lengths at which a plan of a known length would have lost no more than the tolerance all the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean

import torch

from instruments.capture_problems import capture
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.ir.plan import FITTING, Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.plan_cache.cache import PlanCache
from remat_compiler.plan_cache.cached_planner import CachedPlanner
from remat_compiler.plan_cache.origin import is_of_another_size, where_in_cache
from remat_compiler.plan_cache.reuse import TOLERANCE, wasted_ns
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_compiler.stats import Stats, reset_stats, stats
from remat_passes.registry import make_planner
from zoo import build

EXACT, SIMILAR, MISS = "exact", "similar", "miss"


@dataclass(frozen=True, slots=True)
class Row:
    """One answer.

    Attributes:
        length: Tokens of each sequence.
        how: Exact hit, similar hit, or miss.
        status: Status of the answer.
        peak_bytes: Peak of the answer.
        added: Added time of the answer, in percent of the step.
        solved_added: Added time of the plan that is solved for this length, in percent of the step.
        estimated: What a taken plan wastes, as the cache estimates it, in percent of the step.
        best_known: Least added time, in percent of the step, of the plans known before that fit this length.
        seconds: Time of the answer.
        solved_seconds: Time of solving.
    """

    length: int
    how: str
    status: str
    peak_bytes: int
    added: float
    solved_added: float
    estimated: float
    best_known: float | None
    seconds: float
    solved_seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One model under one budget.

    Attributes:
        model: Name in the zoo.
        budget_bytes: The budget.
        rows: Answers in the order of the questions.
    """

    model: str
    budget_bytes: int
    rows: tuple[Row, ...]


def drawn_lengths(count: int, shortest: int, longest: int, seed: int) -> list[int]:
    """Lengths between the limits, the shortest and the longest being as likely as any other."""
    rng = Random(seed)
    return [rng.randint(shortest, longest) for _ in range(count)]


def problems_of(name: str, lengths: Sequence[int], workspace: WorkspaceTable) -> dict[int, RematProblem]:
    """The problem of model `name` for each distinct length, with nominal costs and no budget."""
    model, found = build(name), {}
    vocabulary = 2000
    batch = next(iter(model.inputs.values())).shape[0]
    for length in sorted(set(lengths)):
        tokens = torch.randint(vocabulary, (batch, length))
        inputs = {field: tokens.clone() for field in model.inputs}
        found[length] = capture(replace(model, inputs=inputs), "kernels", "nominal", workspace)
    return found


def run(name: str, problems: dict[int, RematProblem], lengths: Sequence[int], fraction: float) -> Run:
    """Ask the cache for each length in turn, and the planner beside it."""
    longest = problems[max(problems)]
    budget = int(fraction * simulate(longest.graph, longest.costs, Plan.saving_all(longest.graph)).peak_bytes)
    planner = make_planner("auto", reorders=False)
    cached = CachedPlanner(planner, PlanCache(None), max_slowdown=2.0, costs="nominal", parameters="", similar=True)
    alone: dict[int, tuple[PlanResult, float]] = {}
    known: list[PlanResult] = []
    rows = []
    for length in lengths:
        problem = problems[length]
        problem = replace(problem, budget_bytes=budget, max_added_ns=problem.costs.step_ns)
        best_known = best_of(problem, known)
        result, seconds = timed(cached, problem)
        where = where_in_cache(result)
        how = MISS if not where else SIMILAR if is_of_another_size(result) and length not in alone else EXACT
        if how == MISS:
            known.append(result)
        if length not in alone:
            alone[length] = (result, seconds) if how == MISS else timed(planner, problem)
        rows.append(row_of(problem, length, how, result, best_known, seconds, *alone[length]))
    return Run(name, budget, tuple(rows))


def timed(planner: object, problem: RematProblem) -> tuple[PlanResult, float]:
    """The answer of a planner, and its seconds."""
    start = time.perf_counter()
    result: PlanResult = planner.plan(problem)  # type: ignore[attr-defined]
    return result, time.perf_counter() - start


def best_of(problem: RematProblem, known: Sequence[PlanResult]) -> float | None:
    """Least added time of the plans of other lengths that fit, in percent of the step."""
    plans = [result.plan for result in known if result.plan is not None and result.status in FITTING]
    fitting = [simulate(problem.graph, problem.costs, plan) for plan in plans if not verify(problem, plan)]
    return min((100 * timeline.added_ns / problem.costs.step_ns for timeline in fitting), default=None)


def row_of(
    problem: RematProblem,
    length: int,
    how: str,
    result: PlanResult,
    best_known: float | None,
    seconds: float,
    solved: PlanResult,
    solved_seconds: float,
) -> Row:
    """One answer beside what was solved; the answer is verified once more."""
    assert result.plan is not None
    if result.status in FITTING and verify(problem, result.plan, result.peak_bytes):
        raise AssertionError(f"length {length}: the plan of the cache is not valid")
    timeline, step = simulate(problem.graph, problem.costs, result.plan), problem.costs.step_ns
    return Row(
        length=length,
        how=how,
        status=result.status.value,
        peak_bytes=result.peak_bytes,
        added=100 * result.added_ns / step,
        solved_added=100 * solved.added_ns / step,
        estimated=100 * wasted_ns(problem, timeline) / step if how == SIMILAR else 0.0,
        best_known=best_known,
        seconds=seconds,
        solved_seconds=solved_seconds,
    )


def lines_of(one: Run) -> list[str]:
    """The rows and the sums of one model, as text."""
    lines = [f"{one.model}, budget {one.budget_bytes / 1e6:.2f} MB", "length  how      added  solved    loss  seconds"]
    for row in one.rows:
        added = f"{row.added:5.2f} % {row.solved_added:5.2f} % {row.added - row.solved_added:+5.2f} %"
        lines.append(f"{row.length:6}  {row.how:7} {added}  {row.seconds:7.3f}")
    return [*lines, *sums_of(one)]


def sums_of(one: Run) -> list[str]:
    """How often, how far, how fast."""
    rows, bound = one.rows, 100 * TOLERANCE
    by = {how: [row for row in rows if row.how == how] for how in (EXACT, SIMILAR, MISS)}
    losses = [row.added - row.solved_added for row in by[SIMILAR]]
    errors = [row.estimated - (row.added - row.solved_added) for row in by[SIMILAR]]
    late = [r for r in by[MISS] if r.best_known is not None and r.best_known - r.solved_added <= bound]
    lines = [f"{len(by[EXACT])} exact hits, {len(by[SIMILAR])} similar hits, {len(by[MISS])} misses of {len(rows)}"]
    half = rows[len(rows) // 2 :]
    lines.append(f"in the second half: {sum(row.how == MISS for row in half)} misses of {len(half)}")
    if losses:
        lines.append(
            f"loss of similar hits: mean {mean(losses):+.2f} %, largest {max(losses):+.2f} %, "
            f"{sum(loss > bound for loss in losses)} over {bound:.0f} %; "
            f"estimate less loss: mean {mean(errors):+.2f} %, from {min(errors):+.2f} to {max(errors):+.2f} %"
        )
    lines.append(f"worth it, refused: {len(late)} of {len(by[MISS])} misses")
    spent = sum(row.seconds for row in rows)
    alone = sum({row.length: row.solved_seconds for row in rows}.values())
    hits = [row.seconds for row in (*by[EXACT], *by[SIMILAR])]
    hit_ms = 1000 * mean(hits or [0.0])
    return [*lines, f"planning: {spent:.1f} s, each length solved once {alone:.1f} s; a hit takes {hit_ms:.1f} ms"]


def plot(runs: Sequence[Run], path: Path) -> None:
    """Added time by length: what is solved for each length, what is taken, and where the cache missed."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(runs), figsize=(5.2 * len(runs), 3.8), squeeze=False)
    for axis, one in zip(axes[0], runs):
        solved = sorted({(row.length, row.solved_added) for row in one.rows})
        axis.plot(*zip(*solved), color="0.6", linewidth=1.2, label="solved for the length")
        for how, colour, marker in ((SIMILAR, "tab:orange", "o"), (MISS, "tab:blue", "x")):
            points = [(row.length, row.added) for row in one.rows if row.how == how]
            if points:
                label = "taken from another length" if how == SIMILAR else "solved (miss)"
                axis.scatter(*zip(*points), color=colour, marker=marker, s=28, label=f"{label}: {len(points)}")
        axis.set(title=f"{one.model}, {one.budget_bytes / 1e6:.1f} MB", xlabel="length", ylabel="added time, % of step")
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["gpt2", "gpt2eagerattn", "t5"])
    parser.add_argument("--lengths", type=int, default=48, help="how many are drawn")
    parser.add_argument("--shortest", type=int, default=64)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--fraction", type=float, default=0.5, help="budget, of the peak of the longest without one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    lengths = drawn_lengths(options.lengths, options.shortest, options.longest, options.seed)
    print(f"seed {options.seed}, lengths {' '.join(map(str, lengths))}", flush=True)
    workspace = WorkspaceTable()
    runs: list[Run] = []
    for name in options.models:
        problems = problems_of(name, lengths, workspace)
        reset_stats()
        runs.append(run(name, problems, lengths, options.fraction))
        found: Stats = stats()
        print("\n".join(("", *lines_of(runs[-1]), f"solves {found.solves}, exact {found.exact_hits}")), flush=True)
        if options.json:
            record = {"seed": options.seed, "fraction": options.fraction, "runs": [asdict(one) for one in runs]}
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(runs, options.plot)


if __name__ == "__main__":
    main()
