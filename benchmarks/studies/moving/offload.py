"""Moving values to a disk beside recomputing them, measured: smallest peaks, peaks foretold, times foretold.

    python -m studies.moving.offload [--models gpt2 unet] [--inner inductor] [--rounds 9] [--json OUT] [--plot OUT]

Each model runs in these ways, timed in turn, one step of each:

    free           remat without a budget
    recomputed     the smallest peak that recomputation alone reaches
    moved          the smallest peak with values moved to a file
    moved, same    a plan with moved values at the peak of "recomputed"

Peaks are measured at the allocator; times are ratios to "free", beside what the plan's own model says.  On a machine
with a GPU, values go to its host instead (``--device cuda``).
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from instruments.measure import TrainStep, measure_step, step_times, train_step
from instruments.ways import MOST_WAYS, backend
from remat_compiler.errors import RematError
from remat_compiler.report.store import clear_reports, reports
from zoo import build, names

ROOM = "16GiB"
FREE, RECOMPUTED, MOVED, SAME = "free", "recomputed", "moved", "moved, same"


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run a model.

    Attributes:
        model: Name of the model.
        way: One of the ways above.
        peak_bytes: Measured peak.
        foretold_bytes: The peak that the report says.
        moved_bytes: Bytes that leave the device.
        time_ratio: Processor time of a step, over that of "free".
        wall_ratio: The same for wall-clock time.
        foretold_ratio: The same by the plan's model.
    """

    model: str
    way: str
    peak_bytes: int
    foretold_bytes: int
    moved_bytes: int
    time_ratio: float
    wall_ratio: float
    foretold_ratio: float

    @property
    def error_percent(self) -> float:
        """By how much the measured wall-clock time is off the model's, in percent of that."""
        return 100 * (self.wall_ratio / self.foretold_ratio - 1)


@dataclass(frozen=True, slots=True)
class _Way:
    """A compiled step, and what its report says."""

    step: TrainStep
    peak_bytes: int
    foretold_bytes: int
    moved_bytes: int
    foretold_ratio: float


def compiled(name: str, device: str, **options: object) -> _Way:
    """A step of a fresh copy of the model under `options`, run once; errors as the backend's."""
    gc.collect()
    clear_reports()
    model = build(name)
    module = torch.compile(
        model.module.to(device), backend=backend, options={"max_slowdown": None, **options}, dynamic=False
    )
    step = train_step(module, {key: value.to(device) for key, value in model.inputs.items()})
    step()
    peak = measure_step(step, device=device).peak_bytes
    report = reports()[-1]
    ratio = 1 + report.added_ns / report.step_ns
    return _Way(step, peak, report.peak_bytes, report.offloaded_bytes, ratio)


def rows_of(name: str, inner: str, device: str, rounds: int, cost_model: str) -> list[Row]:
    """All ways to run one model; a way that is refused is told of, and left out."""
    ways: dict[str, _Way] = {}

    def add(way: str, **options: object) -> None:
        try:
            ways[way] = compiled(name, device, inner=inner, cost_model=cost_model, **options)
        except RematError as refused:
            print(f"  {name}, {way}: {refused}", flush=True)
            return
        print(f"  {name}, {way}: {ways[way].peak_bytes / 1e6:.3f} MB", flush=True)

    add(FREE, memory_budget=1.0)
    add(RECOMPUTED, memory_budget="min")
    add(MOVED, memory_budget="min", offload_budget=ROOM)
    if RECOMPUTED in ways:
        add(SAME, memory_budget=ways[RECOMPUTED].peak_bytes, offload_budget=ROOM)
    with torch.compiler.set_stance("fail_on_recompile"):
        times = step_times({way: found.step for way, found in ways.items()}, rounds)
    return [
        Row(
            name,
            way,
            found.peak_bytes,
            found.foretold_bytes,
            found.moved_bytes,
            times[way].cpu_ratio,
            times[way].wall_ratio,
            found.foretold_ratio,
        )
        for way, found in ways.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | way | peak, MB | foretold | moved, MB | time | foretold | off |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        sizes = f"{row.peak_bytes / 1e6:.3f} | {row.foretold_bytes / 1e6:.3f} | {row.moved_bytes / 1e6:.1f}"
        times = f"{row.wall_ratio:.3f} | {row.foretold_ratio:.3f} | {row.error_percent:+.0f} %"
        lines.append(f"| {row.model} | {row.way} | {sizes} | {times} |")
    return "\n".join(lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Peak against time of every way, one picture a model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row.model for row in rows))
    columns = min(len(models), 5)
    lines = -(-len(models) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(3.6 * columns, 3.2 * lines), squeeze=False)
    for axis in axes.flat[len(models) :]:
        axis.set_visible(False)
    for axis, model in zip(axes.flat, models):
        for row in (row for row in rows if row.model == model):
            point = axis.plot(row.peak_bytes / 1e6, row.wall_ratio, "o", label=row.way)[0]
            # A dash where the model expects the time.
            axis.plot(row.peak_bytes / 1e6, row.foretold_ratio, "_", color=point.get_color(), markersize=14)
        axis.set(title=model, xlabel="measured peak (MB)", ylabel="time of a step (no budget = 1)", xlim=(0, None))
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run the chosen models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(names()), choices=list(names()))
    parser.add_argument("--inner", default="inductor", choices=("inductor", "eager"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cost-model", default="roofline")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.models:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(recompile_limit=MOST_WAYS):
            rows += rows_of(name, options.inner, options.device, options.rounds, options.cost_model)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
