"""The order of the backward under Inductor: the program's own, loops fused freely, against the order that was planned.

    python -m studies.backward_orders.backward_orders --models nerf convnext --fractions 0.5 0.25 --json orders.json

Each model is trained under each budget in both ways.  A row gives the first estimate of the simulator, the checked and
the measured peak, and the modelled time that recomputation adds; a refused budget gives the smallest reachable peak.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

import torch

import remat_compiler
from instruments.measure import measure_step, train_step
from instruments.ways import backend
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.torch_compat.planned_fusion import Lives
from zoo import build, names


@dataclass(frozen=True)
class Row:
    """One model under one budget in one way; sizes in bytes, 0 where the budget was refused."""

    model: str
    asked: str
    planned_order: bool
    budget_bytes: int
    estimated_bytes: int
    checked_bytes: int
    measured_bytes: int
    added_percent: float
    seconds: float
    smallest_bytes: int = 0


@contextmanager
def in_the_programs_order() -> Iterator[None]:
    """Within the block the backward keeps its order, and loops are fused whatever they hold together."""
    search = BudgetSearch.run

    def run(self: BudgetSearch, goal: SearchGoal) -> tuple[Attempt, int | None]:
        return search(self, replace(goal, request=replace(goal.request, reorders=False)))

    with mock.patch.object(BudgetSearch, "run", run), mock.patch.object(Lives, "fused_bytes", return_value=0):
        yield


def train(name: str, budget: float | str, planned_order: bool) -> Row:
    """Compile and measure one model under one budget."""
    torch._dynamo.reset()
    gc.collect()
    model = build(name)
    options = {"memory_budget": budget, "inner": "inductor", "max_slowdown": None}
    step = train_step(torch.compile(model.module, backend=backend, options=options, dynamic=False), model.inputs)
    start = time.perf_counter()
    try:
        step()
    except InfeasibleBudget as refused:
        seconds = time.perf_counter() - start
        smallest = refused.smallest_peak_bytes
        return Row(name, str(budget), planned_order, refused.budget_bytes, 0, 0, 0, 0.0, seconds, smallest)
    seconds = time.perf_counter() - start
    report = remat_compiler.reports()[-1]
    peaks = (report.estimated_peak_bytes, report.checked_peak_bytes or 0, measure_step(step).peak_bytes)
    limit = report.budget_bytes or 0
    return Row(name, str(budget), planned_order, limit, *peaks, report.added_percent, seconds)


def line(row: Row) -> str:
    """The row as text, sizes in MB."""
    way = "planned order" if row.planned_order else "program's order"
    text = f"{row.model:15} {row.asked:>5} {way:15} budget {row.budget_bytes / 1e6:8.3f} "
    if row.smallest_bytes:
        return f"{text} refused, smallest {row.smallest_bytes / 1e6:.3f}; {row.seconds:.0f} s"
    sizes = (row.estimated_bytes, row.checked_bytes, row.measured_bytes)
    estimate, checked, measured = (f"{size / 1e6:.3f}" for size in sizes)
    peaks = f"estimate {estimate} checked {checked} measured {measured}"
    return f"{text} {peaks} added {row.added_percent:.2f} %; {row.seconds:.0f} s"


def main() -> None:
    """Run the chosen models and budgets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(names()))
    parser.add_argument("--fractions", nargs="*", type=float, default=[0.5, 0.25])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # Each way plans anew.
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in arguments.models:
        for budget in [*arguments.fractions, "min"]:
            with in_the_programs_order():
                rows.append(train(name, budget, False))
            print(line(rows[-1]), flush=True)
            rows.append(train(name, budget, True))
            print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
