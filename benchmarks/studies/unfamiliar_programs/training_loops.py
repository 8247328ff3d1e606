"""The matrix of training loops: gradients equal to eager's, and the measured peak against the budget, one row a loop.

    python -m studies.unfamiliar_programs.training_loops --loops "one graph" DDP --budget 0.8 --inner eager

The budget is a share of the peak under ``aot_eager``; a loop runs in a process of its own, two for two ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from end_to_end.judged_loops import outcome_of, process_group
from end_to_end.training_loops import LOOPS
from end_to_end.two_ranks import LOOPS_OF_TWO, outcomes_of_two

SECONDS = 400
"""A loop that takes longer hangs."""


def row_of(name: str, budget: float, inner: str) -> list[dict[str, Any]]:
    """The outcomes of a loop, one a rank, as plain data."""
    if name in LOOPS_OF_TWO:
        return [asdict(outcome) for outcome in outcomes_of_two(name)]
    with process_group():
        return [asdict(outcome_of(name, budget, inner=inner))]


def row_apart(name: str, budget: float, inner: str) -> list[dict[str, Any]]:
    """The same in another process."""
    module = "studies.unfamiliar_programs.training_loops"
    command = [sys.executable, "-m", module, "--row", name, "--budget", str(budget), "--inner", inner]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return [{"verdict": "hangs", "detail": f"took over {SECONDS} s"}]
    found = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    if not found:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return [{"verdict": "does not run", "detail": f"the process ended with {done.returncode}: {last[:150]}"}]
    rows: list[dict[str, Any]] = json.loads(found[-1])
    return rows


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--loops", nargs="*", default=[*LOOPS, *LOOPS_OF_TWO])
    parser.add_argument("--budget", type=float, default=0.8, help="share of the peak under aot_eager")
    parser.add_argument("--inner", choices=["eager", "inductor"], default="eager")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(row_of(arguments.row, arguments.budget, arguments.inner)), flush=True)
        return
    print(f"{'loop':32} {'':15} {'stock':>10} {'budget':>10} {'measured':>10} graphs", flush=True)
    for name in arguments.loops:
        for row in row_apart(name, arguments.budget, arguments.inner):
            figures = " ".join(f"{row.get(f'{what}_bytes', 0):10}" for what in ("stock", "budget", "measured"))
            print(
                f"{name:32} {row['verdict']:15} {figures} {row.get('planned', 0):4}  {row['detail'][:120]}", flush=True
            )


if __name__ == "__main__":
    main()
