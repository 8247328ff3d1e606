"""What ``chunks="auto"`` changes for models whose loss is not all of their memory, beside ``"never"``.

    python -m studies.chunked_loss.by_default [--models gpt2 t5 llama vit] [--budgets 0.6] [--inners eager inductor]

Each model is compiled and run for one step under every option in turn, without any cache.  Times are CPU seconds of the
process and of the compilers that it starts.  *same* says whether both options hand the same graphs to the inner
compiler.  Models are those of the zoo, and by `transformers/NAME` and `timm/NAME` those of `instruments.architectures`;
a budget of `range:0.5` lies halfway between the smallest peak under ``"never"`` and the peak without a budget.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import remat_compiler
from instruments.architectures import WithLoss, built
from instruments.measure import measure_step, train_step
from remat_compiler.observer import Observer, observed_by
from remat_compiler.progress import progress
from zoo.registry import build


def made(model: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its inputs."""
    if "/" not in model:
        found = build(model)
        return found.module, found.inputs
    module, inputs = built(model.removeprefix("transformers/"))
    return WithLoss(module), inputs


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
    whole_bytes: int
    added_percent: float
    told: str
    graphs: str


def compiled(model: str, inner: str, budget: Any, chunks: str) -> Compiled:
    """One compilation, and one step after it."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    (module, inputs), graphs = made(model), _Graphs()
    options = {"memory_budget": budget, "inner": inner, "chunks": chunks, "max_slowdown": None}
    with observed_by(graphs), fresh_cache():
        step = train_step(torch.compile(module, backend="remat", options=options), inputs)
        before = sum(os.times()[:4])
        step()
        cpu_s = sum(os.times()[:4]) - before
        peak_bytes = measure_step(step).peak_bytes
    report = remat_compiler.reports()[-1]
    told = ", ".join(map(str, report.chunked))
    return Compiled(cpu_s, peak_bytes, report.peak_before_bytes, report.added_percent, told, graphs.text)


def both(model: str, inner: str, budgets: list[str]) -> Iterator[tuple[str, Compiled, Compiled]]:
    """Each budget, and what came of it under ``"never"`` and ``"auto"``."""
    smallest = compiled(model, inner, "min", "never") if any(map(is_of_range, budgets)) else None
    for budget in budgets:
        asked: Any = float(budget) if budget.replace(".", "").isdigit() else budget
        if smallest is not None and is_of_range(budget):
            share = float(budget.partition(":")[2])
            asked = round(smallest.peak_bytes + share * (smallest.whole_bytes - smallest.peak_bytes))
        never = smallest if budget == "min" and smallest is not None else compiled(model, inner, asked, "never")
        yield budget, never, compiled(model, inner, asked, "auto")


def is_of_range(budget: str) -> bool:
    """Whether a budget is a share of what recomputation can spare."""
    return budget.startswith("range:")


def row(inner: str, model: str, budget: str, never: Compiled, auto: Compiled) -> str:
    """A row of the table."""
    peaks = f"{never.peak_bytes / 1e6:.2f} → {auto.peak_bytes / 1e6:.2f} MB"
    added = f"{never.added_percent:.1f} → {auto.added_percent:.1f} %"
    times = f"{never.cpu_s:.1f} → {auto.cpu_s:.1f} s | {auto.cpu_s / never.cpu_s:.2f}"
    same = "yes" if never.graphs == auto.graphs else "no"
    return f"| {inner} | {model} | {budget} | {peaks} | {added} | {times} | {same} | {auto.told} |"


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
    ratios: dict[str, list[float]] = {}
    with progress("compiling", len(given.inners) * len(given.models)) as shown:
        # What is measured once in a process, such as rates, is no part of either.
        compiled("mlp200", "eager", 1.0, "never")
        for inner, model in itertools.product(given.inners, given.models):
            try:
                for budget, never, auto in both(model, inner, given.budgets):
                    ratios.setdefault(inner, []).append(auto.cpu_s / never.cpu_s)
                    print(row(inner, model, budget, never, auto), flush=True)
            except Exception as error:
                print(f"| {inner} | {model} | {type(error).__name__}: {str(error).splitlines()[0][:120]} |", flush=True)
            shown.advance()
    for inner, found in ratios.items():
        print(f"\n{inner}: median of the ratios {statistics.median(found):.2f}")


if __name__ == "__main__":
    main()
