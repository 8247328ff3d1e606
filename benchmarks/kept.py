"""Is every budget kept, and is the prediction exact?  Real training steps, measured at the allocator.

    python benchmarks/kept.py --inner eager --fractions 0.9 0.7 0.5 0.3 --json kept.json

For each model and each budget: the first estimate of the simulator, the checked peak that the report gives,
the measured peak, and whether the budget was kept, the prediction exact, and the budget used.  A budget that is
refused shows the smallest reachable peak that the error names, and that peak is then asked for and measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

import remat_compiler
from instruments.kept_rows import HEADER, Row, line
from instruments.measure import measure_step, train_step
from instruments.ways import backend
from remat_compiler.errors import InfeasibleBudget
from zoo import build, names


def train(name: str, inner: str, budget: object, max_slowdown: float | None) -> Row:
    """Compile and measure one model under one budget; `InfeasibleBudget` where it is refused."""
    torch._dynamo.reset()
    gc.collect()
    model = build(name)
    options = {"memory_budget": budget, "inner": inner, "max_slowdown": max_slowdown}
    compiled = torch.compile(model.module, backend=backend, options=options, dynamic=False)
    start = time.perf_counter()
    step = train_step(compiled, model.inputs)
    step()
    seconds = time.perf_counter() - start
    report = remat_compiler.reports()[-1]
    measured = measure_step(step).peak_bytes
    limit = report.checked_peak_bytes if budget == "min" else report.budget_bytes
    return Row(
        model=name,
        inner=inner,
        asked=str(budget),
        budget_bytes=int(limit or 0),
        before_bytes=report.peak_before_bytes,
        estimated_bytes=report.estimated_peak_bytes,
        checked_bytes=report.checked_peak_bytes or 0,
        measured_bytes=measured,
        added_percent=report.added_percent,
        planner=report.planner,
        seconds=seconds,
    )


def main() -> None:
    """Run the chosen models and budgets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(names()))
    parser.add_argument("--inner", nargs="*", default=["eager"], choices=["eager", "inductor"])
    parser.add_argument("--fractions", nargs="*", type=float, default=[0.9, 0.7, 0.5])
    parser.add_argument("--min", action="store_true", help="also the smallest reachable peak, max_slowdown lifted")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    print(HEADER, flush=True)
    for name in arguments.models:
        for inner in arguments.inner:
            for asked in [*arguments.fractions, *(["min"] if arguments.min else [])]:
                try:
                    rows.append(train(name, inner, asked, None))
                except InfeasibleBudget as refused:
                    print(f"{name:15} {inner:8} {asked:>6} refused: {refused}", flush=True)
                    continue
                print(line(rows[-1]), flush=True)
    kept = sum(r.kept for r in rows)
    exact = sum(r.measured_bytes == r.checked_bytes for r in rows)
    errors = sorted(abs(r.estimated_bytes / r.measured_bytes - 1) for r in rows)
    print(f"{len(rows)} cases: kept {kept}, exact to the byte {exact}, median error of the first estimate "
          f"{100 * errors[len(errors) // 2]:.2f} %" if rows else "no case")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
