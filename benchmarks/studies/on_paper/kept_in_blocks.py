"""Is every budget kept in whole blocks of torch's allocator, with an optimizer, on a GPU that is not there?

    python -m studies.on_paper.kept_in_blocks --models gpt2 bert --inner eager inductor --json OUT.json

``max_memory_allocated`` counts whole blocks, and which blocks serve a step depends on all that the process asked for
before: its parameters, its optimizer's state, the steps before.  The backend foresees them from the graph alone.  Here
the model of the allocator, with segments that do not expand, runs the whole step of a training with AdamW, and the
most that forward and backward have in use of its blocks is held against the budget.

Budgets are bytes at 0.8 and 0.5 of the way from the smallest peak to that without a budget, and a whole number of MiB
near 0.3 of it; the smallest peak is a case of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import remat_compiler
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import InfeasibleBudget, PaperFailure, RematError
from remat_compiler.fitting.counted_step import Counted, count, settle
from remat_compiler.fitting.made_step import MadeStep, made_step
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.paper_step import on_paper
from remat_compiler.fitting.request import FitRequest
from remat_compiler.simulate.reserved import block_sizes, reserved_figures
from zoo import build

MODELS = (
    *("gpt2", "bert", "t5", "llama", "vit", "vgg19", "alexnet", "resnet50", "unet", "nerf", "gnn", "convnext"),
    *("gpt2eagerattn", "diffusion", "lstm", "mlp200", "mamba"),
)
FRACTIONS, ROUNDED = (0.8, 0.5), 0.3
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One model under one budget; all sizes in bytes.

    Attributes:
        model: Name in the zoo.
        inner: What compiled the planned graphs.
        asked: What the budget is.
        budget_bytes: The budget; `None` where none is named, as for the smallest peak.
        said_bytes: The peak in blocks that the backend foresees.
        asked_bytes: What forward and backward ask for at their peak.
        in_use_bytes: The most that they have in use in blocks.
        reserved_bytes: What the allocator reserves for the whole step, beside what is there anyway.
        seconds: Time that it took.
    """

    model: str
    inner: str
    asked: str
    budget_bytes: int | None
    said_bytes: int
    asked_bytes: int
    in_use_bytes: int
    reserved_bytes: int
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the budget, if there is one, covers the blocks in use."""
        return self.budget_bytes is None or self.in_use_bytes <= self.budget_bytes


Found = Row | str
"""A row, or why there is none."""


def rows_of(device: str, name: str, inner: str) -> list[Found]:
    """A model under all budgets; for a process that sees no GPU."""
    native = _row(device, name, inner, "none", 1.0)
    smallest = _row(device, name, inner, "min", "min")
    if isinstance(native, str) or isinstance(smallest, str):
        return [native, smallest]
    low, high = smallest.said_bytes, native.said_bytes
    budgets = {f"{part} of range": int(low + part * (high - low)) for part in FRACTIONS}
    rounded = f"{-int(-(low + ROUNDED * (high - low)) // MIB)}MiB"
    asked: dict[str, Any] = {**budgets, rounded: rounded}
    return [native, smallest, *(_row(device, name, inner, *one) for one in asked.items())]


def _row(device: str, name: str, inner: str, asked: str, budget: Any) -> Found:
    options = {"inner": inner, "max_slowdown": None}
    request = FitRequest(partial(_made, name), device, budget, (), None, "AdamW", options)
    began = time.perf_counter()
    try:
        with on_paper(device) as (_, mode):
            step = made_step(request, None)
            step.compile(budget)
            settle(step)
            counted = count(step, mode)
    except InfeasibleBudget as error:
        return f"refused: {error}"
    report = remat_compiler.reports()[-1]
    said = int((report.step.peak_bytes if report.step else report.checked_peak_bytes) or report.peak_bytes)
    named = report.step.limit_bytes if report.step else report.budget_bytes
    in_use, reserved = in_blocks(step, counted, device)
    return Row(
        *(name, inner, asked, None if asked in ("none", "min") else named, said),
        asked_bytes=max(counted.peaks["forward"], counted.peaks["backward"]),
        in_use_bytes=in_use,
        reserved_bytes=reserved,
        seconds=round(time.perf_counter() - began, 1),
    )


def _made(name: str) -> tuple[Any, Any]:
    model = build(name)
    return model.module, model.inputs


def in_blocks(step: MadeStep, counted: Counted, device: str) -> tuple[int, int]:
    """Most bytes of blocks that forward and backward of a step have in use, and what the whole step reserves.

    The steps are some in a row, of which the first one finds an empty cache and no state of the optimizer.
    """
    trace = counted.trace(step, GPUS[device])
    ends = counted.update_from
    peaks = []
    for sizes in block_sizes(trace, expandable=False):
        change = [0] * (ends + 1)
        for life, size in zip(trace.lives, sizes, strict=True):
            if life.made < ends:
                change[life.made] += size
                change[min(ends if life.freed is None else life.freed, ends)] -= size
        peaks.append(max(accumulate(change[:ends]), default=0))
    return max(peaks), reserved_figures(trace).reserved_bytes


def line(row: Row) -> str:
    """A row as text, in MB."""
    sizes = " ".join(
        f"{size / 1e6:9.3f}"
        for size in (row.budget_bytes or 0, row.said_bytes, row.asked_bytes, row.in_use_bytes, row.reserved_bytes)
    )
    verdict = "-   " if row.budget_bytes is None else "kept" if row.kept else "OVER"
    return f"{row.model:14} {row.inner:8} {row.asked:13} {sizes}  {verdict} {row.seconds:6.1f} s"


def measured(arguments: argparse.Namespace) -> Iterator[Row]:
    """Each row, printed as it is found."""
    for name in arguments.models:
        for inner in arguments.inner:
            try:
                found: Sequence[Found] = call_in_process(rows_of, arguments.device, name, inner)
            except (PaperFailure, RematError) as error:
                found = [f"failed: {error}"]
            for one in found:
                print(line(one) if isinstance(one, Row) else f"{name:14} {inner:8} {one}", flush=True)
            yield from (one for one in found if isinstance(one, Row))


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--device", default="h100")
    parser.add_argument("--inner", nargs="*", default=["eager"], choices=["eager", "inductor"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for row in measured(arguments):
        rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(one) for one in rows], indent=1))
    budgets = [row for row in rows if row.budget_bytes is not None]
    off = sorted(row.in_use_bytes - row.said_bytes for row in rows) or [0]
    print(
        f"{len(budgets)} budgets, {sum(row.kept for row in budgets)} kept; of {len(rows)} peaks in blocks the largest "
        f"was {off[-1]} bytes above what was foreseen, the smallest {-off[0]} below"
    )


if __name__ == "__main__":
    main()
