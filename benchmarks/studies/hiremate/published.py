"""GPT-2 under byte budgets beside what HiRemate and others publish: activation memory saved, added time, planning time.

    python -m studies.hiremate.published [--models gpt2-small ...] [--gpus v100] [--json OUT] [--plot OUT]

*Activation memory* is the peak of a step whose parameters have their gradients already, so that these count nothing at
any time, and is compared with that of the same step without recomputation.  Times are modelled at the rates of the
GPUs that HiRemate measures on (see `published_models`), so added times are a model's here and measured there; peaks
are those of the simulator.  `measured_gpt2.py` has measured ones of a smaller network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from instruments.fake_capture import Captured
from instruments.planner_rows import cpu_seconds
from instruments.published_models import GPUS, MODELS, capture_fake
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.lower_bound import lower_bound_ns
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner

SAVED = (0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper claims.

    Attributes:
        name: Of the tool.
        saved: Least and largest part of activation memory saved.
        added: Least and largest added time, in percent of the step.
        planning: What is known of planning time.
        source: Where it stands.
    """

    name: str
    saved: tuple[float, float]
    added: tuple[float, float]
    planning: str
    source: str


PUBLISHED = (
    Published(
        "HiRemate",
        (0.5, 0.7),
        (10, 15),
        "2.5 h for a transformer of 2,500 nodes (a reviewer's figure)",
        "Gusak et al., ICML 2025, PMLR 267:21418, abstract; openreview rnx11J4hsg",
    ),
    Published("Rockmate", (0.5, 0.8), (10, 20), "", "Zhao et al., ICML 2023, arXiv 2307.01236, abstract: 2 to 5 times"),
    Published("Fast SA", (0.73, 0.73), (18, 18), "", "Imanishi et al., NeurIPS 2023, abstract: means over all models"),
)
"""Over all models of each paper, since figures for GPT-2 alone stand in pictures."""


@dataclass(frozen=True, slots=True)
class Row:
    """One network under one budget.

    Attributes:
        model: Name of the network.
        gpu: Whose rates the times are.
        joint_nodes: Nodes of its joint graph.
        ops: Operators that are planned.
        activation_bytes: Activation memory without recomputation.
        gradient_bytes: Gradients of parameters, which are no part of it.
        step_ns: Time of the step without recomputation.
        asked: Part of activation memory to save.
        saved: Part that the plan saves.
        added_percent: Added time in percent of the step; `None` where no plan fits.
        bound_percent: What no plan of that saving can go below, proven; `None` where it was not asked for or none fits.
        seconds: CPU time of planning.
    """

    model: str
    gpu: str
    joint_nodes: int
    ops: int
    activation_bytes: int
    gradient_bytes: int
    step_ns: int
    asked: float
    saved: float
    added_percent: float | None
    bound_percent: float | None
    seconds: float


def with_gradients_there(problem: RematProblem) -> RematProblem:
    """`problem` where the gradients of parameters are written into memory that is there before the step."""
    storages = tuple(replace(s, size_bytes=0) if s.kind is StorageKind.GRADIENT else s for s in problem.graph.storages)
    return replace(problem, graph=replace(problem.graph, storages=storages))


def rows_of(
    name: str, gpu: str, captured: Captured, planner: Planner, shares: Sequence[float], bounds: bool
) -> list[Row]:
    """The rows of one network at the rates of one GPU, with proven bounds of the added time where asked for.

    Raises:
        RuntimeError: The verifier refuses a plan.
    """
    problem = with_gradients_there(captured.problems[gpu])
    peak = SaveAll().plan(replace(problem, budget_bytes=1 << 62)).peak_bytes
    gradients = sum(s.size_bytes for s in captured.problems[gpu].graph.storages if s.kind is StorageKind.GRADIENT)
    rows = []
    for share in shares:
        asked = replace(problem, budget_bytes=int((1 - share) * peak))
        start = cpu_seconds()
        result = planner.plan(asked)
        seconds = cpu_seconds() - start
        assert result.plan is not None
        fits = result.peak_bytes <= asked.budget_bytes
        if fits and (found := verify(asked, result.plan, result.peak_bytes)):
            raise RuntimeError(f"{name} at {share}: {found[0]}")
        rows.append(
            Row(
                model=name,
                gpu=gpu,
                joint_nodes=captured.joint_nodes,
                ops=len(problem.graph.ops),
                activation_bytes=peak,
                gradient_bytes=gradients,
                step_ns=problem.costs.step_ns,
                asked=share,
                saved=1 - result.peak_bytes / peak,
                added_percent=100 * result.added_ns / problem.costs.step_ns if fits else None,
                bound_percent=100 * lower_bound_ns(asked).bound_ns / problem.costs.step_ns if bounds and fits else None,
                seconds=round(seconds, 3),
            )
        )
    return rows


def saved_within(rows: Sequence[Row], percent: float) -> float:
    """The largest part saved at no more than `percent` added time, of the shares that were asked for."""
    return max((row.saved for row in rows if row.added_percent is not None and row.added_percent <= percent), default=0)


def by_case(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of the same network and GPU."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.model, row.gpu), []).append(row)
    return cases


def table(rows: Sequence[Row]) -> list[str]:
    """A line a network and GPU, its bounds below it where they are known, then what is published."""
    asked = list(dict.fromkeys(row.asked for row in rows))
    found = [
        f"{'model':14} {'gpu':8} {'nodes':>6} {'ops':>6} {'act. GB':>8} {'grad. GB':>8} {'step ms':>8}  added at "
        + " ".join(f"{100 * share:5.0f} %" for share in asked)
        + "  saved at 10 %  15 %  CPU s a plan"
    ]
    for (model, gpu), own in by_case(rows).items():
        first = own[0]
        about = (
            f"{model:14} {gpu:8} {first.joint_nodes:6d} {first.ops:6d} {first.activation_bytes / 1e9:8.2f} "
            f"{first.gradient_bytes / 1e9:8.2f} {first.step_ns / 1e6:8.0f}"
        )
        seconds = [row.seconds for row in own]
        found.append(
            f"{about}           {_cells([row.added_percent for row in own])}"
            f"         {100 * saved_within(own, 10):3.0f} %  {100 * saved_within(own, 15):3.0f} %"
            f"  {min(seconds):.2f}-{max(seconds):.2f}"
        )
        if any(row.bound_percent is not None for row in own):
            found.append(f"{'no plan below':>{len(about)}}           {_cells([row.bound_percent for row in own])}")
    for one in PUBLISHED:
        low, high = (100 * part for part in one.saved)
        text = f"{low:.0f}-{high:.0f} % saved at {one.added[0]:.0f}-{one.added[1]:.0f} %"
        found.append(f"{one.name}: {text}{'; planning ' + one.planning if one.planning else ''}  [{one.source}]")
    return found


def _cells(values: Sequence[float | None]) -> str:
    return "  ".join("    – " if value is None else f"{value:6.1f}" for value in values)


def plot(rows: Sequence[Row], path: Path, measured: Path | None = None) -> None:
    """Added time over memory saved with the published ranges and what was `measured`, and planning time over nodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5))
    for one, colour in zip(PUBLISHED, ("tab:red", "tab:orange", "tab:brown")):
        (left, right), (low, high) = one.saved, one.added
        if left == right:
            axes[0].plot([100 * left], [low], "*", color=colour, markersize=14, label=f"{one.name}, published")
            continue
        corner, size = (100 * left, low), (100 * (right - left), high - low)
        axes[0].add_patch(
            patches.Rectangle(
                corner, *size, alpha=0.18, facecolor=colour, edgecolor=colour, label=f"{one.name}, published"
            )
        )
    colours = dict(zip(dict.fromkeys(row.model for row in rows), pyplot.rcParams["axes.prop_cycle"].by_key()["color"]))
    for (model, gpu), own in by_case(rows).items():
        fitting = [row for row in own if row.added_percent is not None]
        first = gpu == next(iter(GPUS))
        style, label = ("o-", model) if first else ("x--", None)
        xy = [100 * row.saved for row in fitting], [row.added_percent for row in fitting]
        axes[0].plot(*xy, style, color=colours[model], markersize=4, label=label)  # type: ignore[arg-type]
        nodes = [row.joint_nodes for row in own]
        axes[1].plot(nodes, [row.seconds for row in own], style[0], color=colours[model], alpha=0.6)
    found = json.loads(measured.read_text(encoding="utf-8")) if measured else []
    for inner, marker in (("eager", "P"), ("inductor", "D")):
        points = [(100 * r["saved"], 100 * (r["cpu_ratio"] - 1)) for r in found if r["inner"] == inner and r["saved"]]
        if points:
            axes[0].plot(*zip(*points), marker, color="black", label=f"12 layers on a CPU, {inner}, measured")
    axes[1].plot([2500], [2.5 * 3600], "*", color="tab:red", markersize=14, label="HiRemate, transformer (reviewer)")
    title = f"solid: at the rates of {next(iter(GPUS))}, dashed: {', '.join(list(GPUS)[1:])}"
    axes[0].set(xlabel="activation memory saved (%)", ylabel="added time (% of the step)", ylim=(0, 40), title=title)
    axes[1].set(xlabel="nodes of the joint graph", ylabel="planning, CPU s a budget", xscale="log", yscale="log")
    for axis in axes:
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    """Capture, plan, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--gpus", nargs="*", default=list(GPUS), choices=list(GPUS))
    parser.add_argument("--saved", nargs="*", type=float, default=list(SAVED), help="parts of activation memory")
    parser.add_argument("--planner", default=Auto.name)
    parser.add_argument("--time-limit", type=float, default=2.0, help="of the planner, where it has one")
    parser.add_argument("--bounds", action="store_true", help="prove what no plan can go below")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--measured", type=Path, help="JSON of measured_gpt2.py, to be drawn too")
    options = parser.parse_args()
    planner, rows = make_planner(options.planner, time_limit=options.time_limit), []
    for name in options.models:
        captured = capture_fake(MODELS[name])
        print(f"{name}: {captured.joint_nodes} joint nodes", flush=True)
        for gpu in options.gpus:
            rows += rows_of(name, gpu, captured, planner, options.saved, options.bounds)
        if options.json:
            options.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    print("\n".join(table(rows)))
    if options.plot:
        plot(rows, options.plot, options.measured)


if __name__ == "__main__":
    main()
