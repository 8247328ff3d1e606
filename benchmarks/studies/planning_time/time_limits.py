"""What `time_limit` asks of `auto`, and what planning takes: CPU seconds of the stages after the quick search.

    python -m studies.planning_time.time_limits [--instances 'gpt2_*'] [--limits 1 4 10] [--position 0.12] [--cap 3]
                                                [--json results/time_limits.json]

Each case is a process of its own, so that one far beyond its limit can be ended: after `cap` times the limit and ten
seconds more by the clock, which the table shows as "more".  The limit "default" is `time_limit=None`.  Budgets stand
as in `planners.py`, between the smallest peak that `auto` finds (0) and the peak of saving everything (1).  A column
of the table is one limit; it holds CPU seconds beyond those of the quick search, which takes as long with any limit,
and the added time of the plan in percent of the step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from instruments.make_instances import instance_name, instance_paths
from instruments.planner_rows import cpu_seconds
from instruments.problem_file import read_problem
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

INSTANCES = (
    "chain_uniform_small",
    "unet_medium_interpreter",
    "ushape_small",
    "llama_medium_kernels",
    "gpt2_small_decomposed",
    "bert_small_decomposed",
    "unet_full_kernels",
    "lstm_small_decomposed",
    "t5_medium_kernels",
    "gpt2_full_interpreter",
    "gpt2_medium_decomposed",
    "resnet50_medium_kernels",
    "vit_full_decomposed",
    "gpt2eagerattn_full_decomposed",
    "long_skips_medium",
    "random_dag_medium",
    "mlp_full_kernels",
    "resnet50_full_decomposed",
    "gpt2narrow_medium_decomposed",
    "lstm_full_decomposed",
)
"""Of all sizes from 121 to 2,719 operators."""
GRACE_S, DEFAULT_S = 10, 2
"""Seconds beyond the multiple of the limit after which a process is ended; what the default limit is at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """One plan.

    Attributes:
        instance: Name of the instance.
        ops: Its operators.
        limit_s: `time_limit`, or `None` for the default.
        taken_s: CPU seconds beyond those with `time_limit=0`; `None` if the process was ended.
        added_percent: Added time in percent of the step; `None` without a plan that fits.
    """

    instance: str
    ops: int
    limit_s: float | None
    taken_s: float | None
    added_percent: float | None

    @property
    def text(self) -> str:
        """A cell of the table."""
        taken = "more" if self.taken_s is None else f"{self.taken_s:.2f}"
        return f"{taken} ({'-' if self.added_percent is None else f'{self.added_percent:.2f}'})"


def run_case(name: str, problem: RematProblem, limit: float | None, quick_s: float, cap: float) -> Row:
    """One plan in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    most_s = quick_s + cap * (DEFAULT_S if limit is None else limit) + GRACE_S
    child = context.Process(target=_child, args=(problem, limit, there))
    child.start()
    taken, added = here.recv() if here.poll(most_s) else (None, None)
    if taken is None and child.pid is not None:
        # Its group, since a solver may be running for it.
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return Row(name, len(problem.graph.ops), limit, None if taken is None else round(taken - quick_s, 3), added)


def _child(problem: RematProblem, limit: float | None, answer: Connection) -> None:
    os.setsid()
    answer.send(_timed(problem, limit))


def _timed(problem: RematProblem, limit: float | None) -> tuple[float, float | None]:
    """CPU seconds of planning, and added time in percent of the step."""
    began = cpu_seconds()
    result = Auto(time_limit=limit).plan(problem)
    fits = result.peak_bytes <= problem.budget_bytes
    percent = round(100 * result.added_ns / max(problem.costs.step_ns, 1), 4)
    return cpu_seconds() - began, percent if fits else None


def tight(problem: RematProblem, position: float) -> RematProblem:
    """`problem` without its reference and with a budget at `position`."""
    bare = replace(problem, reference=None)
    high = SaveAll().plan(bare).peak_bytes
    low = Auto().smallest_peak(replace(bare, budget_bytes=0)).peak_bytes
    return replace(bare, budget_bytes=low + round(position * (high - low)))


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", nargs="*", default=list(INSTANCES), help="globs of instance names")
    parser.add_argument("--limits", nargs="*", default=["default", "1", "4", "10"], help='seconds, or "default"')
    parser.add_argument("--position", type=float, default=0.12)
    parser.add_argument("--cap", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    limits = [None if text == "default" else float(text) for text in options.limits]
    rows: list[Row] = []
    print("| instance | ops |" + "".join(f" {text} |" for text in options.limits))
    print("|---|--:|" + "--:|" * len(limits))
    for path in [path for pattern in options.instances for path in instance_paths(pattern)]:
        problem = tight(read_problem(path), options.position)
        quick_s, _ = _timed(problem, 0.0)
        own = [run_case(instance_name(path), problem, limit, quick_s, options.cap) for limit in limits]
        rows += own
        print(f"| {own[0].instance} | {own[0].ops} |" + "".join(f" {row.text} |" for row in own), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
