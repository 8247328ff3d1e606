"""Results written into the memory of arguments that die, under the interpreter: what that saves, and that bits agree.

    python -m studies.overwriting.overwriting [--models gpt2 unet] [--budgets 1.0 0.5 min] [--json OUT]

Each model trains two steps with ``inplace_buffers`` off and on, on one thread, from the same weights: losses and
gradients are compared bit for bit, peaks measured at the allocator.  A fraction is the same bytes for both: of the peak
without a budget and without overwriting.  Where it does not fit, the smallest peak is taken, and marked.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from instruments.measure import gradients, measure_step, train_step
from instruments.ways import backend
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import clear_reports, reports
from zoo import build, names

STEPS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one budget; pairs are without and with overwriting.

    Attributes:
        model: Name of the model.
        budget: The budget as asked.
        equal: Whether losses and gradients of all steps are equal to the bit.
        limit_bytes: The budget in bytes; 0 for none.
        peaks_bytes: Measured peaks.
        foretold_bytes: The same as the reports say.
        estimated_bytes: The planner's own first estimates.
        added_percent: Modelled time that the plans add, in percent of the step.
        operators: Operators that overwrite an argument.
        overwritten_bytes: Bytes of their results.
    """

    model: str
    budget: str
    equal: bool
    limit_bytes: int
    peaks_bytes: tuple[int, int]
    foretold_bytes: tuple[int, int]
    estimated_bytes: tuple[int, int]
    added_percent: tuple[float, float]
    operators: int
    overwritten_bytes: int

    @property
    def saved_bytes(self) -> int:
        """How much lower the peak is."""
        return self.peaks_bytes[0] - self.peaks_bytes[1]


@dataclass(frozen=True, slots=True)
class _Trained:
    """What the steps of one compiled copy left behind."""

    results: list[Tensor]
    peak_bytes: int
    report: PlanReport


def trained(name: str, budget: float | int | str, overwrites: bool) -> _Trained:
    """Some steps of a fresh copy of the model."""
    gc.collect()
    clear_reports()
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = build(name)
    options = {
        "memory_budget": budget,
        "inner": "eager",
        "inplace_buffers": overwrites,
        "max_slowdown": None,
        "on_infeasible": "min",
        "cost_model": "nominal",
    }
    step = train_step(torch.compile(model.module, backend=backend, options=options, dynamic=False), model.inputs)
    results = []
    for seed in range(STEPS):
        torch.manual_seed(seed)
        results += [step(), *gradients(model.module)]
    peak = measure_step(step, warmup=0).peak_bytes
    return _Trained(results, peak, reports()[-1])


def row_of(name: str, text: str, whole_bytes: int) -> Row:
    """One model under one budget, both ways; `whole_bytes` is what a fraction is of."""
    budget = text if text == "min" else 1.0 if text == "1.0" else int(float(text) * whole_bytes)
    off, on = (trained(name, budget, overwrites) for overwrites in (False, True))
    same = len(off.results) == len(on.results)
    return Row(
        name,
        text,
        same and all(map(torch.equal, off.results, on.results)),
        budget if isinstance(budget, int) else 0,
        (off.peak_bytes, on.peak_bytes),
        (off.report.peak_bytes, on.report.peak_bytes),
        (off.report.estimated_peak_bytes, on.report.estimated_peak_bytes),
        (off.report.added_percent, on.report.added_percent),
        on.report.overwriting_ops,
        on.report.overwritten_bytes,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | budget | bits equal | peak, MB | foretold, MB | saved | added time | operators | overwritten, MB |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        over = ["*" if row.limit_bytes and one > row.limit_bytes else "" for one in row.peaks_bytes]
        peaks = " → ".join(f"{one / 1e6:.3f}{mark}" for one, mark in zip(row.peaks_bytes, over))
        foretold = " → ".join(f"{one / 1e6:.3f}" for one in row.foretold_bytes)
        exact = "" if row.peaks_bytes == row.foretold_bytes else " **differs**"
        saved = f"{row.saved_bytes:,} ({100 * row.saved_bytes / row.peaks_bytes[0]:.1f} %)"
        added = " → ".join(f"{one:.1f} %" for one in row.added_percent)
        equal = "yes" if row.equal else "**no**"
        lines.append(
            f"| {row.model} | {row.budget} | {equal} | {peaks} | {foretold}{exact} | {saved} | {added} "
            f"| {row.operators} | {row.overwritten_bytes / 1e6:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(names()), choices=list(names()))
    parser.add_argument("--budgets", nargs="*", default=["1.0", "0.5", "min"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Sums by several threads may differ from run to run.
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.models:
        whole_bytes = 0
        for text in options.budgets:
            if text not in ("1.0", "min") and not whole_bytes:
                whole_bytes = trained(name, 1.0, False).peak_bytes
            row = row_of(name, text, whole_bytes)
            whole_bytes = row.peaks_bytes[0] if text == "1.0" else whole_bytes
            rows.append(row)
            print(table([row]).splitlines()[-1], flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
