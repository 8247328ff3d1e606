"""Plans of several repetitions, run: uniform networks under budgets down to the smallest, measured at the allocator.

    python -m studies.uniform_chains.uniform_models [--layers 64 200] [--inner eager inductor]
                                                    [--planners auto chain_dp]

Equal layers of a linear map and tanh, under the mean of squares.  A budget stands at a position between the smallest
peak that the planner reaches ("min") and the peak without a budget; lower ones make activations again several times.
For each: the checked peak of the plan, the measured one, most executions of an operator, and gradients against eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import TrainStep, gradients, measure_step, train_step
from instruments.ways import backend
from remat_compiler.errors import InfeasibleBudget

WIDTH, BATCH = 64, 2048
POSITIONS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.0)


class UniformNet(nn.Module):
    """``tanh(linear(x))`` as many times as there are layers, under the mean of squares."""

    def __init__(self, layers: int, width: int = WIDTH) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """The loss of ``(batch, width)``."""
        for linear in self.linears:
            x = torch.tanh(linear(x))
        return x.square().mean()


@dataclass(frozen=True, slots=True)
class Row:
    """One network under one budget; all sizes in bytes.

    Attributes:
        layers: Layers of the network.
        inner: Inner compiler.
        planner: Name of the planner.
        position: Where the budget stands between the smallest peak (0) and none (1).
        budget_bytes: Largest peak allowed.
        checked_bytes: Peak of what the inner compiler emitted.
        measured_bytes: Peak at the allocator.
        most: Most executions of an operator.
        repeated: Values by the number of executions of their operator, from 1 on.
        added_percent: Added time, modelled, in percent of the step.
        gradient_error: Largest difference of a gradient from eager's, relative to the largest gradient.
    """

    layers: int
    inner: str
    planner: str
    position: float
    budget_bytes: int
    checked_bytes: int
    measured_bytes: int
    most: int
    repeated: tuple[int, ...]
    added_percent: float
    gradient_error: float

    @property
    def kept(self) -> bool:
        """Whether the measured peak is within the budget."""
        return self.measured_bytes <= self.budget_bytes

    @property
    def exact(self) -> bool:
        """Whether the measured peak is the planned one to the byte."""
        return self.measured_bytes == self.checked_bytes


def network(layers: int, width: int = WIDTH, batch: int = BATCH) -> tuple[UniformNet, dict[str, Tensor]]:
    """A network with weights from a fixed seed that keep activations alive, and its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = UniformNet(layers, width)
        for linear in net.linears:
            nn.init.orthogonal_(linear.weight)  # type: ignore[arg-type]
        return net, {"x": torch.randn(batch, width)}


def compiled_step(
    layers: int, inner: str, planner: str, budget: object, width: int = WIDTH, batch: int = BATCH
) -> tuple[TrainStep, UniformNet]:
    """A step under `budget`, compiled and run once."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    gc.collect()
    net, inputs = network(layers, width, batch)
    options = {
        "memory_budget": budget,
        "inner": inner,
        "planner": planner,
        "max_slowdown": None,
        "cost_model": "nominal",
    }
    step = train_step(torch.compile(net, backend=backend, options=options, dynamic=False), inputs)
    step()
    return step, net


def eager_gradients(layers: int, width: int = WIDTH, batch: int = BATCH) -> list[Tensor]:
    """Gradients of all parameters without a compiler."""
    net, inputs = network(layers, width, batch)
    train_step(net, inputs)()
    return gradients(net)


def run(layers: int, inner: str, planner: str, positions: Sequence[float], **size: Any) -> list[Row]:
    """The rows of one network, from the largest budget down."""
    expected = eager_gradients(layers, **size)
    compiled_step(layers, inner, planner, "min", **size)
    report = remat_compiler.reports()[-1]
    low, high = int(report.checked_peak_bytes or 0), report.peak_before_bytes
    rows = []
    for position in sorted(positions, reverse=True):
        budget = low + round(position * (high - low))
        try:
            step, net = compiled_step(layers, inner, planner, budget if position else "min", **size)
        except InfeasibleBudget as refused:
            print(f"{layers:6d} {inner:8} {planner:9} {position:5.2f} refused: {refused}", flush=True)
            continue
        rows.append(_row(layers, inner, planner, position, budget, step, net, expected))
        print(line(rows[-1]), flush=True)
    return rows


def _row(
    layers: int,
    inner: str,
    planner: str,
    position: float,
    budget: int,
    step: TrainStep,
    net: UniformNet,
    expected: Sequence[Tensor],
) -> Row:
    """What is measured of one compiled step, whose gradients must be the `expected` ones."""
    found = gradients(net)
    if len(found) != len(expected):
        raise RuntimeError(f"{len(found)} gradients where eager leaves {len(expected)}")
    scale = max(float(g.abs().max()) for g in expected)
    report = remat_compiler.reports()[-1]
    executions = [1 + d.repeats for d in report.decisions]
    most = max(executions, default=1)
    return Row(
        layers=layers,
        inner=inner,
        planner=planner,
        position=position,
        budget_bytes=budget,
        checked_bytes=int(report.checked_peak_bytes or 0),
        measured_bytes=measure_step(step).peak_bytes,
        most=most,
        repeated=tuple(executions.count(n) for n in range(1, most + 1)),
        added_percent=report.added_percent,
        gradient_error=max(float((a - b).abs().max()) for a, b in zip(found, expected)) / scale,
    )


HEADER = (
    f"{'layers':>6} {'inner':8} {'planner':9} {'at':>5} {'budget MB':>10} {'planned':>9} {'measured':>9} "
    "kept exact  runs    added   gradients"
)


def line(row: Row) -> str:
    """The row as text, sizes in MB."""
    sizes = f"{row.budget_bytes / 1e6:10.3f} {row.checked_bytes / 1e6:9.3f} {row.measured_bytes / 1e6:9.3f}"
    equal = "equal" if row.gradient_error == 0.0 else f"{row.gradient_error:.1e}"
    return (
        f"{row.layers:6d} {row.inner:8} {row.planner:9} {row.position:5.2f} {sizes} "
        f"{'yes ' if row.kept else 'NO  '} {'yes  ' if row.exact else 'NO   '} {row.most:4d} "
        f"{row.added_percent:7.1f} %  {equal}"
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Added time over the measured peak, one frame a network; numbers are the most executions of an operator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    cases = list(dict.fromkeys((row.layers, row.inner) for row in rows))
    figure, axes = pyplot.subplots(1, len(cases), figsize=(4.4 * len(cases), 3.8), squeeze=False)
    for axis, (layers, inner) in zip(axes[0], cases):
        own = [row for row in rows if (row.layers, row.inner) == (layers, inner)]
        for planner, marker in zip(dict.fromkeys(row.planner for row in own), "osx^"):
            chosen = [row for row in own if row.planner == planner]
            axis.plot(
                [r.measured_bytes / 1e6 for r in chosen], [r.added_percent for r in chosen], marker, label=planner
            )
            axis.plot([r.budget_bytes / 1e6 for r in chosen], [r.added_percent for r in chosen], "k|", markersize=9)
            for r in chosen:
                axis.annotate(f" {r.most}", (r.measured_bytes / 1e6, r.added_percent), fontsize=8)
        axis.set(
            title=f"{layers} layers, {inner}", xlabel="measured peak (MB), | budget", ylabel="added time, modelled (%)"
        )
        axis.set(xscale="log", yscale="log")
        for one in (axis.xaxis, axis.yaxis):
            one.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            one.set_major_formatter("{x:g}")
            one.set_minor_formatter(ticker.NullFormatter())
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="*", type=int, default=[64, 200])
    parser.add_argument("--inner", nargs="*", default=["eager", "inductor"], choices=["eager", "inductor"])
    parser.add_argument("--planners", nargs="*", default=["auto", "chain_dp"])
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    print(HEADER, flush=True)
    for layers in options.layers:
        for inner in options.inner:
            for planner in options.planners:
                rows += run(layers, inner, planner, options.positions)
                if options.json:
                    options.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    kept, exact = sum(row.kept for row in rows), sum(row.exact for row in rows)
    print(f"{len(rows)} cases: budget kept in {kept}, planned peak exact in {exact}, "
          f"gradients equal to eager's in {sum(row.gradient_error == 0.0 for row in rows)}")  # fmt: skip
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
