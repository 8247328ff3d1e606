"""GPT-2 trained for real at parts of its peak: measured peaks and step times, side by side.

    python -m studies.hiremate.measured_gpt2 [--layers 12] [--inner eager inductor] [--saved 0.5 0.6 0.7] [--rounds 9]

The setting of HiRemate's measurements at a size that a CPU trains (see `published_models`): with ``inner="eager"``
against PyTorch as it is, with Inductor against Inductor without a budget.  The peak without a budget stands at the end
of the forward, where no gradient is, so the part of the peak that is saved is no more than that of activation memory.
Steps of all ways are interleaved, and ratios taken within a round; gradients cannot be compared, since each way draws
its own dropout (``--dropout 0`` compares them).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import TrainStep, measure_step, step_times, train_step
from instruments.published_models import Gpt2
from instruments.ways import MOST_WAYS, backend, with_torch
from remat_compiler.errors import InfeasibleBudget


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train the network; all sizes in bytes.

    Attributes:
        inner: Inner compiler.
        way: "PyTorch", "Inductor", or the part of their peak to save.
        budget_bytes: Largest peak allowed; 0 for none.
        peak_bytes: Measured peak.
        saved: Part of the first way's peak that is saved, measured.
        modelled_percent: Added time that the plan's cost model foresees.
        cpu_ratio: Processor time of a step over the first way's, median of the rounds.
        wall_ratio: The same for elapsed time.
        gradient_error: Largest difference of a gradient from the first way's, relative to the largest gradient;
            `None` with dropout.
    """

    inner: str
    way: str
    budget_bytes: int
    peak_bytes: int
    saved: float
    modelled_percent: float
    cpu_ratio: float
    wall_ratio: float
    gradient_error: float | None


def fresh(model: Gpt2) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network with weights from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model.build()


def gradients(step: TrainStep) -> list[Tensor]:
    """The gradients that the last step left."""
    return [p.grad.clone() for p in step.parameters if p.grad is not None]


def run(model: Gpt2, inner: str, shares: Sequence[float], rounds: int) -> list[Row]:
    """The rows of one inner compiler."""
    module, inputs = fresh(model)
    first = "PyTorch" if inner == "eager" else "Inductor"
    steps = {first: train_step(module if inner == "eager" else with_torch(module), inputs)}
    peaks = {first: measure_step(steps[first]).peak_bytes}
    expected = gradients(steps[first])
    scale = max(float(g.abs().max()) for g in expected)
    budgets, modelled, errors = {first: 0}, {first: 0.0}, {first: 0.0}
    print(f"{first}: {peaks[first] / 1e6:.3f} MB", flush=True)
    for share in shares:
        way, budget = f"{100 * share:.0f} % saved", int((1 - share) * peaks[first])
        module, inputs = fresh(model)
        options: dict[str, Any] = {"memory_budget": budget, "inner": inner, "max_slowdown": None}
        step = train_step(torch.compile(module, backend=backend, options=options, dynamic=False), inputs)
        try:
            step()
        except InfeasibleBudget as refused:
            print(f"{way}: {refused}", flush=True)
            continue
        report = remat_compiler.reports()[-1]
        steps[way], budgets[way], modelled[way] = step, budget, report.added_percent
        peaks[way] = measure_step(step).peak_bytes
        errors[way] = max(float((a - b).abs().max()) for a, b in zip(expected, gradients(step), strict=True)) / scale
        print(f"{way}: {peaks[way] / 1e6:.3f} MB of {budget / 1e6:.3f} MB", flush=True)
    with torch.compiler.set_stance("fail_on_recompile"):
        times = step_times(steps, rounds)
    return [
        Row(
            inner=inner,
            way=way,
            budget_bytes=budgets[way],
            peak_bytes=peaks[way],
            saved=1 - peaks[way] / peaks[first],
            modelled_percent=modelled[way],
            cpu_ratio=times[way].cpu_ratio,
            wall_ratio=times[way].wall_ratio,
            gradient_error=None if model.dropout else errors[way],
        )
        for way in steps
    ]


def line(row: Row) -> str:
    """The row as text."""
    kept = "yes" if not row.budget_bytes or row.peak_bytes <= row.budget_bytes else "NO"
    error = "" if row.gradient_error is None else f"  gradients off by {row.gradient_error:.1e}"
    return (
        f"{row.inner:9} {row.way:12} {row.budget_bytes / 1e6:9.3f} {row.peak_bytes / 1e6:9.3f}  kept {kept:3} "
        f"saved {100 * row.saved:5.1f} %  modelled {row.modelled_percent:5.1f} %  "
        f"CPU {row.cpu_ratio:6.3f}x  wall {row.wall_ratio:6.3f}x{error}"
    )


def main() -> None:
    """Train, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--inner", nargs="*", default=["eager", "inductor"], choices=["eager", "inductor"])
    parser.add_argument("--saved", nargs="*", type=float, default=[0.5, 0.6, 0.7])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = Gpt2("gpt2", options.layers, 256, 4, 4, 256, vocabulary=2000, dropout=options.dropout, tokens_lost=True)
    rows: list[Row] = []
    for inner in options.inner:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(recompile_limit=MOST_WAYS):
            rows += run(model, inner, options.saved, options.rounds)
        if options.json:
            options.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    print("\n".join(line(row) for row in rows))


if __name__ == "__main__":
    main()
