"""Calibrations beside other programs: how far their figures are apart, with two samples of each and until two agree.

    python -m studies.calibrations.calibrations --runs 10 --busy 0 2 6

Each run calibrates in a process of its own, beside so many others that multiply matrices, in both ways by turns.  A row
gives, for each figure, the largest over the smallest of the runs, and how many runs had figures that nothing confirmed,
which are not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from remat_compiler.costs import calibration

BUSY = "import torch; torch.set_num_threads(1); x = torch.ones(512, 512)\nwhile True: x @ x"
WAYS = {"two samples": 2, "until two agree": calibration.MOST_ROUNDS}


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Within the block, so many other processes compute."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    # They import torch first.
    time.sleep(5 * bool(count))
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def one_run(rounds: int) -> None:
    """Calibrate here, and print what was found."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    with mock.patch.object(calibration, "MOST_ROUNDS", rounds):
        found = calibration.calibrate("cpu")
    seconds = time.perf_counter() - start
    print(json.dumps({"figures": found.figures, "unconfirmed": found.unconfirmed, "seconds": seconds}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2, 6])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_run(options.one)
        return
    for count in options.busy:
        found: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
        with beside(count):
            for _ in range(options.runs):
                for way, rounds in WAYS.items():
                    command = [sys.executable, "-m", "studies.calibrations.calibrations", "--one", str(rounds)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    found[way].append(json.loads(done.stdout.splitlines()[-1]))
        for way, runs in found.items():
            print(row(count, way, runs), flush=True)


def row(count: int, way: str, runs: list[dict[str, object]]) -> str:
    """The runs in one line, and the spread of each figure in those that are kept in another."""
    seconds = statistics.median(float(run["seconds"]) for run in runs)  # type: ignore[arg-type]
    kept = [run for run in runs if way == "two samples" or not run["unconfirmed"]]
    figures: list[dict[str, int]] = [run["figures"] for run in kept]  # type: ignore[misc]
    spread = {
        name: max(one[name] for one in figures) / min(one[name] for one in figures) for name in (figures or [{}])[0]
    }
    text = ", ".join(f"{name.removeprefix('cpu ').removeprefix('flops_per_s ')} {s:.1f}" for name, s in spread.items())
    return f"{count} busy, {way}: {seconds:.1f} s, {len(kept)} of {len(runs)} kept; spread: {text}"


if __name__ == "__main__":
    main()
