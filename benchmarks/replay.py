"""Plan every instance under two git revisions, and show which plans changed.

    python benchmarks/replay.py main HEAD [--instances '*_small_*'] [--positions 0.25 0.5] [--planner auto] [--json OUT]

Each revision is checked out into a temporary folder of its own and plans in a process of its own, so that only what is
committed counts.  The instances are those of this checkout, and the budgets those of the old revision's smallest
peaks, so that both answer the same questions.  Fewer nanoseconds are better, or a lower peak where neither plan fits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from make_instances import INSTANCES, instance_name, instance_paths

ROOT = Path(__file__).resolve().parents[1]
POSITIONS = (0.05, 0.25, 0.5)
WORKER = Path(__file__).with_name("replay_worker.py")


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan as far as it is compared; `digest` is of its steps."""

    status: str
    peak_bytes: int
    added_ns: int
    digest: str

    def rank(self, budget_bytes: int) -> tuple[bool, int]:
        """Smaller is better."""
        fits = self.status in ("optimal", "feasible", "timed_out") and self.peak_bytes <= budget_bytes
        return (not fits, self.added_ns if fits else self.peak_bytes)


@dataclass(frozen=True, slots=True)
class Change:
    """One question and both answers."""

    instance: str
    budget_bytes: int
    old: Answer
    new: Answer

    @property
    def verdict(self) -> str:
        """What the new revision did: "same plan", "equal", "better" or "worse"."""
        if self.old == self.new:
            return "same plan"
        old, new = self.old.rank(self.budget_bytes), self.new.rank(self.budget_bytes)
        return "equal" if old == new else "better" if new < old else "worse"


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the files of `revision`."""
    with tempfile.TemporaryDirectory(prefix="remat-replay-") as folder:
        archive = Path(folder) / "files.tar"
        _git("archive", "--format=tar", f"--output={archive}", revision, "remat_compiler", "passes")
        subprocess.run(["tar", "-xf", str(archive), "-C", folder], check=True)
        archive.unlink()
        yield Path(folder)


def plan_under(
    revision: str, planner: str, questions: Sequence[tuple[str, Sequence[int] | None]], positions: Sequence[float]
) -> dict[tuple[str, int], Answer]:
    """Answers of `planner` at `revision`, by path and budget; budgets of `None` mean all `positions`.

    Raises:
        SystemExit: The revision is unknown, or its planner failed.
    """
    request = json.dumps({"planner": planner, "questions": questions, "positions": list(positions)})
    with checkout(revision) as folder:
        path = f"{folder}:{folder / 'passes'}"
        done = subprocess.run(
            [sys.executable, str(WORKER)],
            input=request,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": f"{folder}/numba"},
        )
    if done.returncode:
        raise SystemExit(f"{planner!r} failed at revision {revision!r}:\n{done.stderr}")
    answers = {}
    for line in done.stdout.splitlines():
        file, budget, status, peak, added, digest = json.loads(line)
        answers[file, budget] = Answer(status, peak, added, digest)
    return answers


def replay(
    old: str,
    new: str,
    paths: Sequence[Path],
    positions: Sequence[float],
    planner: str,
    budgets: Sequence[int] | None = None,
) -> list[Change]:
    """All questions with both answers.

    Args:
        old: The first revision, whose smallest peaks decide the budgets.
        new: The second one.
        paths: Files of the instances.
        positions: Where the budgets stand.
        planner: Name of the planner.
        budgets: Budgets of every instance in bytes, in the place of `positions`.
    """
    asked = [(str(path), None if budgets is None else list(budgets)) for path in paths]
    first = plan_under(old, planner, asked, positions)
    again = [(file, [budget for other, budget in first if other == file]) for file, _ in asked]
    second = plan_under(new, planner, again, positions)
    return [
        Change(instance_name(Path(file)), budget, was, second[file, budget]) for (file, budget), was in first.items()
    ]


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
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    paths = sorted({path for pattern in options.instances for path in instance_paths(pattern, INSTANCES)})
    revisions = [_git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (options.old, options.new)]
    changes = replay(revisions[0], revisions[1], paths, options.positions, options.planner)
    for change in changes:
        if change.verdict != "same plan":
            was, now = change.old, change.new
            times = f"{was.added_ns / 1e6:9.3f} -> {now.added_ns / 1e6:9.3f} ms"
            peaks = f"{was.peak_bytes / 1e6:8.3f} -> {now.peak_bytes / 1e6:8.3f} MB"
            print(f"{change.verdict:7} {change.instance:32} {change.budget_bytes / 1e6:8.3f} MB  {times}  {peaks}")
    counts = Counter(change.verdict for change in changes)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("same plan", "equal", "better", "worse")))
    if options.json:
        rows = [{**asdict(change), "verdict": change.verdict} for change in changes]
        options.json.write_text(json.dumps({"revisions": revisions, "changes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
