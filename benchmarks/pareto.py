"""Peak against step time: remat, Inductor's own partition, PyTorch's knob and per-block checkpoints, in one run.

    python benchmarks/pareto.py --models gpt2 --knob 0.5 0.2 --fractions 0.7 0.5 --plot pareto.svg --json pareto.json

Peaks are measured at the allocator, times interleaved (one step of each in turn) and given as ratios to Inductor
without a budget.  At every point of the knob, and at the checkpoints' peak, remat gets the *measured peak* as its
budget in bytes, so each row of a rival has a row of remat beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config

from instruments.measure import TrainStep, measure_step, step_times, train_step
from instruments.ways import MOST_WAYS, with_checkpoints, with_remat, with_torch
from remat_compiler.errors import RematError
from zoo import build, names


@dataclass(frozen=True)
class Row:
    """One way to run a model."""

    model: str
    way: str
    budget_bytes: int
    peak_bytes: int
    time_ratio: float
    cpu_ratio: float


def compiled(name: str, compile_: Callable[[nn.Module], Any]) -> TrainStep:
    """A step of a fresh copy of the model, compiled and run once.

    Dynamo keeps every way's code until the end: forgetting one would have it compiled anew when it is timed.
    """
    gc.collect()
    model = build(name)
    step = train_step(compile_(model.module), model.inputs)
    step()
    return step


def run(name: str, arguments: argparse.Namespace) -> list[Row]:
    """All ways to run one model."""
    steps: dict[str, TrainStep] = {}
    budgets: dict[str, int] = {}
    peaks: dict[str, int] = {}

    def add(way: str, make: Callable[[nn.Module], Any], budget: int = 0) -> None:
        try:
            steps[way] = compiled(name, make)
        except RematError as refused:
            print(f"  {way}: {refused}", flush=True)
            return
        budgets[way] = budget
        peaks[way] = measure_step(steps[way]).peak_bytes
        print(f"  {way:28} {peaks[way] / 1e6:9.3f} MB", flush=True)

    add("inductor", with_torch)
    for knob in arguments.knob:
        with functorch_config.patch(activation_memory_budget=knob):
            add(f"knob {knob}", with_torch)
    if arguments.checkpoint:
        add("checkpointed blocks", with_checkpoints)
    for rival in list(peaks)[1:]:
        add(f"remat at {rival}", with_remat(peaks[rival], "inductor"), peaks[rival])
    for fraction in arguments.fractions:
        budget = int(fraction * peaks["inductor"])
        add(f"remat {fraction}", with_remat(budget, "inductor"), budget)
    with torch.compiler.set_stance("fail_on_recompile"):
        times = step_times(steps, arguments.rounds)
    return [Row(name, way, budgets[way], peaks[way], times[way].wall_ratio, times[way].cpu_ratio) for way in steps]


KINDS = {
    "remat": ("remat, a budget in bytes", "o", "-"),
    "knob": ("PyTorch's activation_memory_budget", "s", "-"),
    "checkpointed": ("each block checkpointed by hand", "^", ""),
    "inductor": ("no budget", "D", ""),
}
"""How each kind of row is drawn: its name, marker and line."""


def plot(rows: list[Row], path: Path) -> None:
    """Peak against time of every way; the values of the knob stand at its points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(r.model for r in rows))
    columns = min(len(models), 5)
    lines = -(-len(models) // columns)
    width, height = (7.2, 3.8) if len(models) == 1 else (4.2, 3.6)
    figure, axes = pyplot.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)
    for axis in axes.flat[len(models) :]:
        axis.set_visible(False)
    for axis, model in zip(axes.flat, models):
        for kind, (label, marker, line) in KINDS.items():
            chosen = sorted(
                (r for r in rows if r.model == model and r.way.startswith(kind)), key=lambda r: r.peak_bytes
            )
            peaks, times = [r.peak_bytes / 1e6 for r in chosen], [r.cpu_ratio for r in chosen]
            axis.plot(peaks, times, line, marker=marker, label=label)
            if kind == "knob":
                for row, peak, time in zip(chosen, peaks, times):
                    axis.annotate(row.way.removeprefix("knob "), (peak, time), (6, 2), textcoords="offset points")
        axis.set(title=model, xlabel="measured peak of a step (MB)", ylabel="time of a step (no budget = 1)")
        axis.grid(alpha=0.3)
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100 if len(models) == 1 else 70)


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["gpt2"], choices=list(names()))
    parser.add_argument("--knob", nargs="*", type=float, default=[0.8, 0.5, 0.2])
    parser.add_argument("--fractions", nargs="*", type=float, default=[0.6, 0.5])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-checkpoint", dest="checkpoint", action="store_false")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.models:
        print(name, flush=True)
        torch._dynamo.reset()
        with torch._dynamo.config.patch(recompile_limit=MOST_WAYS):
            found = run(name, arguments)
        rows += found
        print(f"  {'way':28} {'budget MB':>10} {'peak MB':>9} {'CPU x':>7} {'wall x':>7}")
        for r in found:
            sizes = f"{r.budget_bytes / 1e6:10.3f} {r.peak_bytes / 1e6:9.3f}"
            print(f"  {r.way:28} {sizes} {r.cpu_ratio:7.3f} {r.time_ratio:7.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
