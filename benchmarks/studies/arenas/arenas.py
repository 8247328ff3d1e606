"""Values at planned offsets beside the allocator's own places: the same numbers, the same peak, and what is reserved.

    python -m studies.arenas.arenas [--models gpt2 unet] [--budgets 1.0 0.5 min] [--rounds 7] [--json OUT]

Each model trains three steps with ``layout="plain"`` and ``layout="planned"``, on one thread, from the same weights:
losses and gradients are compared bit for bit, peaks measured at the allocator, steps timed in turn.  Reserved bytes are
those of the model of torch's caching allocator, on top of what is resident.
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

from instruments.measure import TrainStep, gradients, measure_step, step_times, train_step
from instruments.ways import backend
from remat_compiler.errors import RematError
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import clear_reports, reports
from zoo import build, names

STEPS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one budget.

    Attributes:
        model: Name of the model.
        budget: The budget as asked.
        equal: Whether losses and gradients of all steps are equal to the bit.
        peaks_bytes: Measured peak without and with arenas.
        foretold_bytes: The same as the reports say.
        reserved_bytes: Reserved with plain segments, without and with arenas.
        expandable_bytes: The same with segments that expand.
        arenas: Number of arenas; 0 where they were not used.
        covered_percent: Part of all bytes that lies in them.
        time_ratio: Wall-clock time of a step with arenas, over that without.
    """

    model: str
    budget: str
    equal: bool
    peaks_bytes: tuple[int, int]
    foretold_bytes: tuple[int, int]
    reserved_bytes: tuple[int, int]
    expandable_bytes: tuple[int, int]
    arenas: int
    covered_percent: float
    time_ratio: float


@dataclass(frozen=True, slots=True)
class _Trained:
    """A compiled step after its first steps."""

    step: TrainStep
    results: list[Tensor]
    peak_bytes: int
    report: PlanReport


def trained(name: str, budget: float | str, layout: str) -> _Trained:
    """Three steps of a fresh copy of the model; errors as the backend's."""
    gc.collect()
    clear_reports()
    torch.manual_seed(0)
    model = build(name)
    options = {"memory_budget": budget, "layout": layout, "max_slowdown": None, "cost_model": "nominal"}
    step = train_step(torch.compile(model.module, backend=backend, options=options, dynamic=False), model.inputs)
    results = []
    for seed in range(STEPS):
        torch.manual_seed(seed)
        results += [step(), *gradients(model.module)]
    peak = measure_step(step).peak_bytes
    return _Trained(step, results, peak, reports()[-1])


def row_of(name: str, budget: float | str, rounds: int) -> Row:
    """Both layouts of one model under one budget."""
    plain, planned = (trained(name, budget, layout) for layout in ("plain", "planned"))
    times = step_times({"plain": plain.step, "planned": planned.step}, rounds)
    same = len(plain.results) == len(planned.results)
    return Row(
        name,
        str(budget),
        same and all(map(torch.equal, plain.results, planned.results)),
        (plain.peak_bytes, planned.peak_bytes),
        (plain.report.peak_bytes, planned.report.peak_bytes),
        (plain.report.reserved_bytes, planned.report.reserved_bytes),
        (plain.report.expandable_bytes, planned.report.expandable_bytes),
        len(planned.report.arena_bytes),
        planned.report.covered_percent,
        times["planned"].wall_ratio,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | budget | bits equal | peak, MB | reserved, MB | expandable, MB | arenas | covered | time |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        pairs = [
            " → ".join(f"{one / 1e6:.2f}" for one in pair)
            for pair in (row.peaks_bytes, row.reserved_bytes, row.expandable_bytes)
        ]
        foretold = "" if row.peaks_bytes == row.foretold_bytes else " (not as foretold)"
        equal = "yes" if row.equal else "**no**"
        covered = f"{row.covered_percent:.0f} %" if row.arenas else "-"
        asked = f"{row.model} | {row.budget}"
        figures = f"{row.arenas or '-'} | {covered} | {row.time_ratio:.3f}"
        lines.append(f"| {asked} | {equal} | {pairs[0]}{foretold} | {pairs[1]} | {pairs[2]} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(names()), choices=list(names()))
    parser.add_argument("--budgets", nargs="*", default=["1.0", "0.5", "min"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Sums by several threads may differ from run to run.
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.models:
        for text in options.budgets:
            torch._dynamo.reset()
            try:
                rows.append(row_of(name, text if text == "min" else float(text), options.rounds))
            except RematError as refused:
                print(f"  {name}, {text}: {refused}", flush=True)
                continue
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
