"""Plan every instance under two git revisions, and show which plans changed, who wins, and what planning cost.

    python benchmarks/replay.py main HEAD [--instances '*_small_*'] [--positions 0.25 0.5] [--planner auto]
                                [--range-of old] [--json OUT] [--plot OUT]

Each revision is checked out into a temporary folder of its own and plans in a process of its own, so that only what is
committed counts.  The instances are those of this checkout.  Both revisions get the same budgets, which stand between
the smallest peak that one of them (`--range-of`) finds and the peak without recomputation.  All plans are judged by
the simulator and the verifier of this checkout.  Fewer nanoseconds are better, or a lower peak where neither plan fits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from instruments.make_instances import INSTANCES, instance_name, instance_paths
from instruments.problem_file import read_problem
from instruments.replay_rows import Answer, Change, lines, plot, summary, write_changes
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.planning.save_all import SaveAll

ROOT = Path(__file__).resolve().parents[1]
POSITIONS = (0.05, 0.12, 0.25, 0.5, 0.75)
WORKER = Path(__file__).parent / "instruments" / "replay_worker.py"
Question = tuple[Path, Sequence[int]]


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the files of `revision`.

    Raises:
        SystemExit: git does not know the revision.
    """
    with tempfile.TemporaryDirectory(prefix="remat-replay-") as folder:
        archive = Path(folder) / "files.tar"
        _git("archive", "--format=tar", f"--output={archive}", revision, "remat_compiler", "passes")
        subprocess.run(["tar", "-xf", str(archive), "-C", folder], check=True)
        archive.unlink()
        yield Path(folder)


def plans_under(folder: Path, planner: str, questions: Sequence[Question]) -> Iterator[tuple[str, int, Answer]]:
    """Path, budget and answer of each question, in order; a budget of 0 asks for the smallest peak.

    Args:
        folder: A checkout.
        planner: Name of the planner.
        questions: Files and their budgets.

    Raises:
        SystemExit: The planner does not exist there, or the process broke down.
    """
    request = json.dumps({"planner": planner, "questions": [(str(path), list(own)) for path, own in questions]})
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{folder / 'passes'}",
        "OMP_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": f"{folder}/numba",
    }
    problems: dict[str, RematProblem] = {}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=folder,
            env=environment,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.close()
        for text in process.stdout:
            path, budget, status, boundary, steps, seconds, error = json.loads(text)
            if steps is None:
                yield path, budget, Answer(status, 0, 0, "", seconds, error or "no plan")
                continue
            if path not in problems:
                problems = {path: replace(read_problem(Path(path)), reference=None)}
            plan = Plan(tuple(map(OpId, steps)), boundary)
            yield path, budget, judged(replace(problems[path], budget_bytes=budget), plan, seconds)
        if process.wait():
            said.seek(0)
            raise SystemExit(f"planner {planner!r} failed in the checkout {folder}:\n{said.read()}")


def told(what: str, count: int, answers: Iterator[tuple[str, int, Answer]]) -> Iterator[tuple[str, int, Answer]]:
    """`answers`, each of which is told on standard error, since a revision may take long."""
    for number, answer in enumerate(answers, 1):
        print(f"{what}: {number} of {count}, {instance_name(Path(answer[0]))}", file=sys.stderr, flush=True)
        yield answer


def judged(problem: RematProblem, plan: Plan, seconds: float) -> Answer:
    """What today's simulator and verifier say of a plan that took `seconds`."""
    digest = hashlib.sha256(json.dumps([plan.boundary, *plan.steps]).encode()).hexdigest()
    timeline = simulate(problem.graph, problem.costs, plan)
    found = verify(replace(problem, budget_bytes=max(timeline.peak_bytes, problem.budget_bytes)), plan)
    if found:
        return Answer("refused", timeline.peak_bytes, 0, digest, seconds, f"refused by the verifier: {found[0]}")
    fits = timeline.peak_bytes <= problem.budget_bytes
    return Answer("fits" if fits else "over", timeline.peak_bytes, timeline.added_ns, digest, seconds)


def replay(
    old: str,
    new: str,
    paths: Sequence[Path],
    positions: Sequence[float],
    planner: str,
    *,
    range_of: str = "old",
    budgets: Sequence[int] | None = None,
) -> Iterator[Change]:
    """All questions with both answers, instance by instance.

    Args:
        old: The first revision.
        new: The second one.
        paths: Files of the instances.
        positions: Where the budgets stand.
        planner: Name of the planner.
        range_of: Whose smallest peak is position 0: "old" or "new".
        budgets: Budgets of every instance in bytes, in the place of `positions`.

    Raises:
        SystemExit: A revision is unknown, or its process broke down.
    """
    with checkout(old) as was, checkout(new) as now:
        if budgets is None:
            base = was if range_of == "old" else now
            lows = told("smallest peaks", len(paths), plans_under(base, planner, [(path, [0]) for path in paths]))
            asked = [(Path(path), _budgets(Path(path), low, positions)) for path, _, low in lows]
        else:
            asked = [(path, list(budgets)) for path in paths]
        asked = [(path, own) for path, own in asked if own]
        if not asked:
            return
        # One after the other, so that neither slows the other down.
        count = sum(len(own) for _, own in asked)
        first = [answer for _, _, answer in told(old, count, plans_under(was, planner, asked))]
        for (path, budget, second), answer in zip(plans_under(now, planner, asked), first, strict=True):
            costs = read_problem(Path(path)).costs
            yield Change(instance_name(Path(path)), len(costs.time_ns), costs.step_ns, budget, answer, second)


def _budgets(path: Path, low: Answer, positions: Sequence[float]) -> list[int]:
    """Budgets at `positions` above the peak of `low`; none where the range's revision has no plan."""
    if low.note:
        print(f"{instance_name(path)} is left out: {low.note}", file=sys.stderr, flush=True)
        return []
    high = SaveAll().plan(replace(read_problem(path), reference=None)).peak_bytes
    return list(dict.fromkeys(low.peak_bytes + round(at * (high - low.peak_bytes)) for at in positions))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]} failed; name two revisions that `git rev-parse` knows: {done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Show what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="git revision")
    parser.add_argument("new", help="git revision")
    parser.add_argument("--instances", nargs="*", default=["*"], help="globs of instance names")
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--planner", default="auto")
    parser.add_argument("--range-of", default="old", choices=["old", "new"], help="whose smallest peak is position 0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    paths = {path for pattern in options.instances for path in instance_paths(pattern, INSTANCES)}
    if not paths:
        parser.error(f"no instance matches {' '.join(options.instances)}; see {INSTANCES}")
    revisions = [_git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (options.old, options.new)]
    about: dict[str, Any] = {"revisions": revisions, "planner": options.planner, "range_of": options.range_of}
    changes: list[Change] = []
    ordered = sorted(paths, key=lambda path: (path.stat().st_size, path.name))
    for change in replay(*revisions, ordered, options.positions, options.planner, range_of=options.range_of):
        changes.append(change)
        print(lines(change), flush=True)
        if options.json:
            write_changes(options.json, about, changes)
    print("\n".join(["", *summary(changes)]))
    if options.plot:
        plot(changes, [revision[:7] for revision in revisions], options.plot)


if __name__ == "__main__":
    main()
