"""Is every budget kept, and is the prediction exact, on GPUs that are not there?  Emitted code runs on fake tensors.

    python -m studies.on_paper.kept_on_paper --devices h100 rtx4090 --fractions 0.9 0.7 0.5 --json OUT.json

As `kept.py`, with a peak that is counted rather than measured: Inductor's code for the GPU runs without its kernels.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import remat_compiler
from instruments.kept_rows import HEADER, Row, line
from remat_compiler.errors import PaperFailure, RematError
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.paper_step import fit_on_paper
from remat_compiler.fitting.request import FitRequest
from zoo import build, names

Found = Row | str
"""One model under one budget, or why there is no such step."""


def rows_on_paper(device: str, name: str, inner: str, budgets: Sequence[Any]) -> list[Found]:
    """The model under each budget; for a process that sees no GPU."""
    return [_row(device, name, inner, budget) for budget in budgets]


def _row(device: str, name: str, inner: str, budget: Any) -> Found:
    options = {"inner": inner, "max_slowdown": None}
    try:
        point = fit_on_paper(FitRequest(partial(_made, name), device, budget, (), None, None, options)).points[0]
    except RematError as error:
        return f"{type(error).__name__}: {error}"
    if point.problem:
        return f"refused: {point.problem}"
    report = remat_compiler.reports()[-1]
    if report.budget_bytes is not None and budget != "min" and point.in_use_bytes > report.budget_bytes:
        return f"over in blocks: {point.in_use_bytes} of {report.budget_bytes}"
    return Row(
        model=name,
        inner=device,
        asked=str(budget),
        budget_bytes=int((report.checked_peak_bytes if budget == "min" else report.budget_bytes) or 0),
        before_bytes=report.peak_before_bytes,
        estimated_bytes=report.estimated_peak_bytes,
        # What is asked for is exact; which blocks serve it depends on the whole step, the optimizer's included.
        checked_bytes=report.requested_bytes,
        measured_bytes=point.budgeted_bytes,
        added_percent=report.added_percent,
        planner=report.planner,
        seconds=point.seconds,
    )


def _made(name: str) -> tuple[Any, Any]:
    model = build(name)
    return model.module, model.inputs


def measured(arguments: argparse.Namespace) -> Iterator[Row]:
    """Each row, printed as it is found."""
    budgets = [*arguments.fractions, "min"]
    for device in arguments.devices:
        for name in arguments.models:
            try:
                found = call_in_process(rows_on_paper, device, name, arguments.inner, budgets)
            except PaperFailure as error:
                found = [f"failed: {error}"]
            for one in found:
                print(line(one) if isinstance(one, Row) else f"{name:15} {device:8} {one}", flush=True)
            yield from (one for one in found if isinstance(one, Row))


def summary(rows: Sequence[Row]) -> str:
    """What all rows come to."""
    kept = sum(row.kept for row in rows)
    exact = sum(row.measured_bytes == row.checked_bytes for row in rows)
    errors = sorted(abs(row.estimated_bytes / row.measured_bytes - 1) for row in rows)
    by_model = [[row.measured_bytes for row in group] for _, group in groupby(rows, lambda row: (row.inner, row.model))]
    monotone = sum(peaks == sorted(peaks, reverse=True) for peaks in by_model)
    return (
        f"{len(rows)} cases: kept {kept}, exact to the byte {exact}, median error of the first estimate "
        f"{100 * errors[len(errors) // 2]:.2f} %, monotone in {monotone} of {len(by_model)}"
    )


def main() -> None:
    """Run the chosen models, devices and budgets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(names()))
    parser.add_argument("--devices", nargs="*", default=["h100", "rtx4090"])
    parser.add_argument("--inner", default="inductor", choices=["eager", "inductor"])
    parser.add_argument("--fractions", nargs="*", type=float, default=[0.9, 0.7, 0.5])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(HEADER, flush=True)
    rows = list(measured(arguments))
    print(summary(rows) if rows else "no case")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
