"""What ``chunks="auto"`` changes for models whose loss is not all of their memory, beside ``"never"``.

    python -m studies.chunked_loss.by_default [--models gpt2 t5 llama vit] [--budgets 0.6] [--inners eager inductor]

Each model is compiled and run for one step under every option in turn, without any cache.  Times are CPU seconds of the
process and of the compilers that it starts.  *same* says whether both options hand the same graphs to the inner
compiler.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.utils import fresh_cache

import remat_compiler
from instruments.measure import measure_step, train_step
from remat_compiler.observer import Observer, observed_by
from remat_compiler.progress import progress
from zoo.registry import build


class _Graphs(Observer):
    """The graphs of the last partition, as text."""

    text = ""

    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        self.text = f"{partition.graphs.forward.graph}\n{partition.graphs.backward.graph}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model compiled under one option, and its step."""

    cpu_s: float
    peak_bytes: int
    added_percent: float
    told: str
    graphs: str


def compiled(model: str, inner: str, budget: Any, chunks: str) -> Compiled:
    """One compilation, and one step after it."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    made, graphs = build(model), _Graphs()
    options = {"memory_budget": budget, "inner": inner, "chunks": chunks}
    with observed_by(graphs), fresh_cache():
        step = train_step(torch.compile(made.module, backend="remat", options=options), made.inputs)
        before = sum(os.times()[:4])
        step()
        cpu_s = sum(os.times()[:4]) - before
        peak_bytes = measure_step(step).peak_bytes
    report = remat_compiler.reports()[-1]
    return Compiled(cpu_s, peak_bytes, report.added_percent, ", ".join(map(str, report.chunked)), graphs.text)


def main() -> None:
    """Print a table of Markdown, and the median of the ratios of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["gpt2", "t5", "llama", "vit"])
    parser.add_argument("--budgets", nargs="*", default=["0.6"])
    parser.add_argument("--inners", nargs="*", default=["eager", "inductor"])
    given = parser.parse_args()
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    print("| inner | model | budget | peak | added | compiled in | ratio | same | chunks |")
    print("|---|---|--:|--:|--:|--:|--:|---|---|", flush=True)
    cases = [(i, b, m) for i in given.inners for b in given.budgets for m in given.models]
    ratios: dict[str, list[float]] = {}
    with progress("compiling", len(cases)) as shown:
        # What is measured once in a process, such as rates, is no part of either.
        compiled("mlp200", "eager", 1.0, "never")
        for inner, budget, model in cases:
            asked = float(budget) if budget.replace(".", "").isdigit() else budget
            never, auto = (compiled(model, inner, asked, chunks) for chunks in ("never", "auto"))
            ratio = auto.cpu_s / never.cpu_s
            ratios.setdefault(inner, []).append(ratio)
            peaks = f"{never.peak_bytes / 1e6:.1f} → {auto.peak_bytes / 1e6:.1f} MB"
            added = f"{never.added_percent:.1f} → {auto.added_percent:.1f} %"
            times = f"{never.cpu_s:.1f} → {auto.cpu_s:.1f} s | {ratio:.2f}"
            same = "yes" if never.graphs == auto.graphs else "no"
            print(f"| {inner} | {model} | {budget} | {peaks} | {added} | {times} | {same} | {auto.told} |", flush=True)
            shown.advance()
    for inner, found in ratios.items():
        print(f"\n{inner}: median of the ratios {statistics.median(found):.2f}")


if __name__ == "__main__":
    main()
