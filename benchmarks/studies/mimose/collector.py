"""Table 2 of Mimose: what collecting from the first steps takes, and predicting and choosing layers, in iterations.

    python -m studies.mimose.collector [--tasks TC-Bert ...] [--iterations 40] [--budget-share 0.7] [--inner eager]
                                       [--seed 0] [--json OUT.json]

The four models and ranges of lengths of `estimators`, trained with `planner="mimose"` and `estimator="quadratic"` under
a budget that is a share of the eager peak at the largest length.  Columns:

    collector      one run of the forward beside the step, layer by layer, the median; how many were kept, and dropped
    first run      the first one, with what it takes to know its peak beforehand
    iteration      a step after the phase at sizes seen before, the median
    predict        bytes of all layers at one size, and Algorithm 1 on them, the median over the sizes drawn
    total          all collecting, and predicting and choosing once for each size drawn; and that in iterations

Left out, as in the paper, is what compiling takes; what checking the peak by dry runs takes is in the last column, for
the paper has no such thing.  Times are of a CPU with one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.dynamic_shapes.mimose.collector import Collector
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.observer import Observer, observed_by
from remat_passes.planning.mimose import choose_layers
from studies.mimose.estimators import TASKS
from studies.mimose.varying_models import VaryingModel

PAPER = ("MC-Roberta", "QA-XLNet", "QA-Bert", "TC-Bert")
DROPPED_SHARE = 0.5
"""Part of the predicted bytes that the scheduler, where it is timed, must drop."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What one task took.

    Attributes:
        task: Its name.
        sizes: Different sizes that came.
        collected: Samples kept.
        dropped: Samples thrown away.
        calls: Calls until the phase ended.
        collector_ms: One run, the median of those kept.
        first_run_ms: The first run, its peak by size included.
        iteration_ms: A step at sizes seen before, the median.
        predict_ms: A prediction and a choice, the median.
        total_ms: All of it.
        dry_runs_ms: Checking peaks by dry runs, in all.
        error_percent: Error of a size from the others, mean.
    """

    task: str
    sizes: int
    collected: int
    dropped: int
    calls: int
    collector_ms: float
    first_run_ms: float
    iteration_ms: float
    predict_ms: float
    total_ms: float
    dry_runs_ms: float
    error_percent: float

    @property
    def iterations(self) -> float:
        """The total in iterations."""
        return self.total_ms / self.iteration_ms


class Watched:
    """The collectors that are made while it is in place, and how long each of their calls took."""

    def __init__(self) -> None:
        self.collectors: list[Collector] = []
        self.calls_ms: list[tuple[bool, float]] = []

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        collectors, before = self.collectors, Collector.before_step

        class Watcher(Observer):
            def collector_made(self, attempt: Any, collector: Collector) -> None:
                collectors.append(collector)

        def before_step(collector: Collector, *arguments: Any) -> bool:
            known, start = len(collector.estimator.samples), time.perf_counter()
            goes_on = before(collector, *arguments)
            kept = len(collector.estimator.samples) > known
            self.calls_ms.append((kept, 1e3 * (time.perf_counter() - start)))
            return goes_on

        # Steps are timed in which nothing is compiled.
        stack.enter_context(patch.object(VariantMaker, "pays", math.inf))
        stack.enter_context(observed_by(Watcher()))
        stack.enter_context(patch.object(Collector, "before_step", before_step))


def loss_of(model: VaryingModel, call: Any, inputs: dict[str, Tensor]) -> Tensor:
    """A scalar of what the model returns."""
    outputs = call(**inputs)
    first: Tensor = next(value for value in outputs.values() if isinstance(value, Tensor))
    return first.square().mean()


def overhead(task: str, options: argparse.Namespace) -> Overhead:
    """Train for some iterations."""
    torch.manual_seed(options.seed)
    torch._dynamo.reset()
    remat_compiler.reset_stats()
    model, spec = TASKS[task].build(), TASKS[task]
    rng = np.random.default_rng(options.seed)
    lengths = [spec._one(rng) for _ in range(options.iterations)]
    budget = _budget(model, spec.high, options.budget_share)
    given = {"memory_budget": budget, "planner": "mimose", "estimator": "quadratic", "inner": options.inner}
    given |= {"max_slowdown": None, "on_infeasible": "min"}
    call = torch.compile(model.module, backend=partial(remat, options=given))
    watched, spent, seen = Watched(), [], set[int]()
    with ExitStack() as stack:
        watched.install(stack)
        for length in [*lengths, *lengths]:
            inputs = model.inputs(length)
            for value in inputs.values():
                torch._dynamo.mark_dynamic(value, value.dim() - 1)
            start = time.perf_counter()
            loss_of(model, call, inputs).backward()
            if length in seen and not any(one.active for one in watched.collectors):
                spent.append(1e3 * (time.perf_counter() - start))
            seen.add(length)
            model.module.zero_grad()
    collector = max(watched.collectors, key=lambda one: len(one.estimator.samples))
    predict = [_predict_ms(collector, (length,)) for length in sorted(seen)]
    stats = remat_compiler.stats()
    return Overhead(
        task,
        sizes=len(seen),
        collected=stats.collections,
        dropped=stats.collections_dropped,
        calls=sum(one.calls for one in watched.collectors),
        collector_ms=median(ms for kept, ms in watched.calls_ms if kept),
        first_run_ms=watched.calls_ms[0][1],
        iteration_ms=median(spent),
        predict_ms=median(predict),
        total_ms=1e3 * stats.collecting_s + median(predict) * len(seen),
        dry_runs_ms=1e3 * stats.dry_run_s,
        error_percent=100 * collector.estimator.fitted().left_out_error,
    )


def _budget(model: VaryingModel, length: int, share: float) -> int:
    """A share of the eager peak at one length."""
    inputs = model.inputs(length)

    def step() -> None:
        model.module.zero_grad()
        loss_of(model, model.module, inputs).backward()

    return int(share * measure_step(step, warmup=1).peak_bytes)


def _predict_ms(collector: Collector, sizes: Sequence[int]) -> float:
    """A prediction of all layers, and Algorithm 1 on it."""
    start = time.perf_counter()
    found = collector.estimator.predict(sizes).block_bytes
    choose_layers(found, int(DROPPED_SHARE * sum(found)))
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Train, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--iterations", type=int, default=40, help="lengths drawn; all come twice")
    parser.add_argument("--budget-share", type=float, default=0.7, help="of the eager peak at the largest length")
    parser.add_argument("--inner", default="eager", choices=("eager", "inductor"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {options.seed}, {options.iterations} lengths, budget {options.budget_share} of the eager peak at most")
    print("task        | collector ms (iteration ms) kept, dropped | first run ms | predict ms | total ms (iterations)")
    rows = []
    for task in options.tasks:
        row = overhead(task, options)
        rows.append(row)
        print(
            f"{row.task:11} | {row.collector_ms:.1f} ({row.iteration_ms:.1f}) {row.collected}, {row.dropped} | "
            f"{row.first_run_ms:.0f} | {row.predict_ms:.3f} ({row.sizes} sizes) | {row.total_ms:.0f} "
            f"({row.iterations:.1f}) | dry runs {row.dry_runs_ms:.0f} ms; bytes off by {row.error_percent:.3f} %",
            flush=True,
        )
    if options.json:
        lines = ",\n".join(json.dumps({**asdict(row), "iterations": row.iterations}) for row in rows)
        options.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
