"""Random training programs under random budgets: how often are numbers wrong, does it crash, is a budget exceeded?

    python benchmarks/random_programs.py --programs 2000 --inner eager --seed 0
    python benchmarks/random_programs.py --only 17 --budgets 0.6        # one program: its source and what became of it
    python benchmarks/random_programs.py --only 17 --shrink             # and the smallest one that fails alike
    python benchmarks/random_programs.py --ranks 2                      # each on two ranks, which talk to each other

Programs come from their seeds alone (`tests/end_to_end/random_programs.py`), and run in processes of their own, so that
one that dies or hangs is a row as any other.  Numbers are compared with eager, peaks measured at the allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from end_to_end.judged_programs import BAD, Trial, Verdict, judge
from end_to_end.random_losses import EACH
from end_to_end.random_programs import Program, draw, trains
from end_to_end.smaller_programs import largest, smaller

BUDGETS: tuple[float | str, ...] = (1.0, 0.8, 0.6, "min", "bytes")
SECONDS = 240
"""A program that takes longer than this for all its budgets hangs."""

Row = dict[str, Any]


def budget_of(text: str) -> float | str:
    """The budget that a word of the command line means."""
    return text if text in ("min", "bytes") else float(text)


def rows_of(seed: int, budgets: Sequence[float | str], inner: str) -> list[Row]:
    """The trials of one program, as plain data."""
    program = draw(seed)
    features = sorted(program.features)
    return [
        {**asdict(trial), "verdict": trial.verdict.name, "seed": seed, "features": features}
        for trial in judge(program, budgets, inner)
    ]


def in_turn(budgets: Sequence[float | str], seed: int) -> Sequence[float | str]:
    """The first budget and, by turns, one of the others."""
    return [budgets[0], budgets[1 + seed % (len(budgets) - 1)]] if len(budgets) > 2 else budgets


def work(seeds: range, budgets: Sequence[float | str], inner: str, rotate: bool) -> None:
    """Print a line of JSON for each program, with the rows of all ranks."""
    for seed in seeds:
        rows = rows_of(seed, in_turn(budgets, seed) if rotate else budgets, inner)
        if dist.is_initialized():
            of_all: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(of_all, rows)
            rows = [row for some in of_all for row in some]
        print(json.dumps(rows), flush=True)


@contextmanager
def joined(rank: int, ranks: int) -> Iterator[None]:
    """A group of this process and `ranks` - 1 others, which the first one starts with its own command."""
    if ranks == 1:
        yield
        return
    others: list[subprocess.Popen[str]] = []
    if rank == 0:
        os.environ["RANDOM_PROGRAMS_STORE"] = str(Path(tempfile.mkdtemp(prefix="random-programs-")) / "store")
        for other in range(1, ranks):
            command = [sys.executable, *sys.argv, "--rank", str(other)]
            others.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True))
    store = f"file://{os.environ['RANDOM_PROGRAMS_STORE']}"
    dist.init_process_group("gloo", store, timedelta(seconds=SECONDS), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        for process in others:
            process.wait(SECONDS)
        dist.destroy_process_group()


class Worker:
    """A process that judges programs from `first` on; its lines are read by a thread."""

    def __init__(self, first: int, last: int, options: Sequence[str]) -> None:
        command = [sys.executable, __file__, "--worker", str(first), str(last), *options]
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1"}
        # A session of its own, so that it ends with the ranks that it started.
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def next(self) -> list[Row] | None:
        """The rows of the next program, or `None` where the process died, was too slow, or is done."""
        started = time.monotonic()
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, SECONDS - (time.monotonic() - started)))
            except queue.Empty:
                line = None
            if line is None:
                self.end()
                return None
            if line.startswith("[{"):  # anything else is chatter of the libraries
                found: list[Row] = json.loads(line)
                return found

    def end(self) -> None:
        """End it and the ranks that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def judged(seeds: range, options: Sequence[str], chunk: int = 50) -> Iterator[list[Row]]:
    """The rows of each program in turn; a process lives for `chunk` programs at most."""
    seed, step = seeds.start, seeds.step
    while seed < seeds.stop:
        end = min(seed + chunk * step, seeds.stop)
        worker = Worker(seed, end, options)
        while seed < end:
            rows = worker.next()
            if rows is None:
                code = worker.process.returncode
                trial = Trial("all", Verdict.DIED, f"the process ended with {code}, or took over {SECONDS} s")
                rows = [{**asdict(trial), "verdict": trial.verdict.name, "seed": seed, "features": []}]
            yield rows
            seed += step
            if worker.process.poll() is not None and worker.lines.empty():
                break
        worker.end()


def table(rows: Sequence[Row]) -> str:
    """Verdicts by budget."""
    budgets = sorted({str(row["budget"]) for row in rows})
    width = max(len(verdict.value) for verdict in Verdict) + 2
    lines = [f"{'':{width}}" + "".join(f"{budget:>8}" for budget in [*budgets, "all"])]
    for verdict in Verdict:
        counts = [sum(r["verdict"] == verdict.name and str(r["budget"]) == b for r in rows) for b in budgets]
        lines.append(f"{verdict.value:{width}}" + "".join(f"{count:8}" for count in [*counts, sum(counts)]))
    for name, wanted in (("prediction exact to the byte", True), ("prediction not exact", False)):
        counts = [sum(r["exact"] is wanted and str(r["budget"]) == b for r in rows) for b in budgets]
        lines.append(f"{name:{width}}" + "".join(f"{count:8}" for count in [*counts, sum(counts)]))
    return "\n".join(lines)


def classes(rows: Sequence[Row]) -> str:
    """What must not happen, alike details together, with the features that such programs have more than others."""
    found: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        verdict = Verdict[row["verdict"]]
        if verdict in BAD or row["exact"] is False:
            name = verdict.value if verdict in BAD else "prediction not exact"
            found[name, re.sub(r"\d[\d.e+-]*", "N", row["detail"])[:160]].append(row)
    everywhere = Counter(f for r in {r["seed"]: r for r in rows}.values() for f in r["features"])
    programs = len({r["seed"] for r in rows})
    lines = []
    for (name, detail), some in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]))):
        seeds = sorted({row["seed"] for row in some})
        counts = Counter(f for r in {r["seed"]: r for r in some}.values() for f in r["features"])
        lift = {f: (n / len(seeds)) / (everywhere[f] / programs) for f, n in counts.items() if 2 * n >= len(seeds)}
        typical = sorted(lift, key=lambda f: -lift[f])[:4]
        lines.append(f"{name}: {len(seeds)} programs {seeds[:8]}: {detail}\n    often with: {', '.join(typical)}")
    return "\n".join(lines)


def shrunk(program: Program, budget: float | str, inner: str) -> Program:
    """The smallest program found that eager trains and that fails in the same way."""
    wanted = _failure(program, budget, inner)
    if wanted is None:
        return program
    better = True
    while better:
        better = False
        for candidate in smaller(program):
            if trains(candidate) and _failure(candidate, budget, inner) == wanted:
                program, better = candidate, True
                print(f"{largest(program)} parts", end="\r", file=sys.stderr, flush=True)
                break
    return program


def _failure(program: Program, budget: float | str, inner: str) -> tuple[Verdict, str, bool] | None:
    """How the program fails under the budget, or `None`."""
    budgets = [budget] if budget != "bytes" and not program.breaks else [1.0, budget]
    trial = list(judge(program, dict.fromkeys(budgets), inner))[-1]  # type: ignore[arg-type]
    if trial.verdict not in BAD and trial.exact is not False:
        return None
    kind = re.sub(r"[\d.]+", "", trial.detail)[:40] if trial.verdict is Verdict.CRASH else ""
    return trial.verdict, kind, trial.measured_bytes > trial.predicted_bytes


def show(seed: int, budgets: Sequence[float | str], inner: str, shrink: bool) -> None:
    """Print one program and its trials; shrunk for the first budget at which it fails, if asked."""
    program = draw(seed)
    print(program.source)
    for trial in judge(program, budgets, inner):
        print(f"# {trial.budget}: {trial.verdict.value} {trial.detail} {trial.exact}", flush=True)
        if shrink and (trial.verdict in BAD or trial.exact is False):
            small = shrunk(program, trial.budget, inner)
            print(small.source)
            for again in judge(small, budgets, inner):
                print(f"# {again.budget}: {again.verdict.value} {again.detail} {again.exact}", flush=True)
            return


def main() -> None:
    """Judge many programs, or one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    between = f"from seed to seed; with {EACH}, from 1 on, all programs have losses over many classes"
    parser.add_argument("--step", type=int, default=1, help=between)
    parser.add_argument("--inner", choices=["eager", "inductor"], default="eager")
    parser.add_argument("--budgets", nargs="+", type=budget_of, default=list(BUDGETS), metavar="BUDGET")
    parser.add_argument(
        "--rotate", action="store_true", help="each program under the first budget and one other, in turn"
    )
    parser.add_argument("--only", type=int, help="one program, in this process")
    parser.add_argument("--shrink", action="store_true", help="with --only: make it smaller while it fails alike")
    parser.add_argument("--json", type=Path, help="write each trial as a line of JSON")
    parser.add_argument("--ranks", type=int, default=1, help="each program on so many ranks of gloo at once")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        with joined(arguments.rank, arguments.ranks):
            seeds = range(*arguments.worker, arguments.step)
            work(seeds, arguments.budgets, arguments.inner, arguments.rotate)
        return
    if arguments.only is not None:
        show(arguments.only, arguments.budgets, arguments.inner, arguments.shrink)
        return
    os.environ.setdefault("REMAT_CACHE_DIR", tempfile.mkdtemp(prefix="random-programs-"))
    rows: list[Row] = []
    started = time.monotonic()
    seeds = range(arguments.seed, arguments.seed + arguments.programs * arguments.step, arguments.step)
    options = ["--ranks", str(arguments.ranks), "--inner", arguments.inner, "--budgets", *map(str, arguments.budgets)]
    options += ["--step", str(arguments.step), *(["--rotate"] if arguments.rotate else [])]
    for done, found in enumerate(judged(seeds, options), 1):
        rows += found
        if arguments.json:
            with arguments.json.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
        bad = Counter(row["verdict"] for row in rows if Verdict[row["verdict"]] in BAD)
        said = ", ".join(f"{count} {Verdict[name].value}" for name, count in sorted(bad.items())) or "none bad"
        seconds = time.monotonic() - started
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{done} of {arguments.programs} programs, {seconds:.0f} s: {said}", end=end, file=sys.stderr, flush=True)
    print(f"\n{arguments.programs} programs from seed {arguments.seed}, inner={arguments.inner}")
    print(table(rows))
    print(classes(rows))


if __name__ == "__main__":
    main()
