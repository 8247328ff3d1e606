"""HOME's tables: the largest batch of six networks on an RTX 2080 Ti, the time of a step, and how the search goes.

    python -m studies.moving.home_tables [--models VGG16 ...] [--json OUT.json] [--plot OUT.png] [--particles 500]

All planners get the same costs: operators by the data sheet's rates (`costs.rates.paper_rates`), as in eager PyTorch,
copies at four fifths of PCI Express 3.  Figures of the paper are measured ones on PyTorch 1.5, and stand beside, to
compare ratios: how much larger a batch becomes, and who is faster than whom.  At a batch between PyTorch's largest and
Capuchin's, every planner answers the same problem; the curve is that of the swarm at that batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from instruments.cnns import CIFAR, CIFAR_CLASSES
from instruments.verified import check
from remat_compiler.devices.gpus import GPUS
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.auto import Auto
from remat_passes.planning.capuchin import Capuchin
from remat_passes.planning.delta import Delta
from remat_passes.planning.home import Home
from remat_passes.planning.save_all import SaveAll
from remat_passes.planning.superneurons import SuperNeurons
from remat_passes.planning.vdnn import Vdnn
from remat_passes.policies.space import PolicySpace
from remat_passes.policies.swarm import Swarm, Turn
from studies.moving.growing_batch import GrowingBatch, image_step, largest_batch

PAPER = {
    "MobileNet": ((2012, 3954, 4200), (1706, 2999, 3426), 28, 1.7),
    "Plain20": ((1040, 2843, 2926), (2368, 2012, 2554), 41, 2.2),
    "SqueezeNet": ((1667, 4056, 4347), (6273, 5719, 6613), 9, 0.5),
    "VGG16": ((2759, 4250, 5125), (2786, 5120, 6211), 25, 1.4),
    "ResNet": ((1255, 2014, 2576), (2285, 2179, 2519), 10, 0.6),
    "InceptionV3": ((125, 345, 365), (257, 240, 280), 350, 21.8),
}
"""Tables 2 and 3: largest batch and samples a second of PyTorch, Capuchin and HOME, seconds of the search, and
milliseconds of one evaluation."""
PARTS = (0.25, 0.5, 0.75, 1.0)
"""Batches between PyTorch's largest and Capuchin's at which all planners answer."""
QUICK = 300
"""Effort of the quick form of `auto`."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch under one planner."""

    model: str
    planner: str
    batch: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One planner's plan for one network at one batch.

    Attributes:
        model: Name of the network.
        planner: Name of the planner.
        batch: The batch.
        fits: Whether it is within the memory.
        added_percent: Added time in percent of the step.
        seconds: Time of planning.
        evaluations: Policies that were judged, if the planner tells.
    """

    model: str
    planner: str
    batch: int
    fits: bool
    added_percent: float
    seconds: float
    evaluations: int


def largest(name: str, step: GrowingBatch, planners: Sequence[Planner]) -> list[Largest]:
    """The largest batches, each search beginning where the one before ended if it is no worse."""
    rows: list[Largest] = []
    for planner in planners:
        least = max((row.batch for row in rows), default=1)
        batch, plan = largest_batch(step, planner, least)
        if plan is None:
            batch, plan = largest_batch(step, planner)
        rows.append(Largest(name, planner.name, batch, batch / plan.time_ns * 1e9 if plan else 0.0))
        print(f"{name} {planner.name}: {batch}", flush=True)
    return rows


def answers(
    name: str, step: GrowingBatch, batches: Sequence[int], planners: Sequence[tuple[str, Planner]]
) -> list[Answer]:
    """Every planner at every batch.

    Raises:
        RuntimeError: The verifier refuses a plan.
    """
    rows = []
    for batch in batches:
        problem = step.at(batch)
        for label, planner in planners:
            start = time.perf_counter()
            result = planner.plan(problem)
            seconds = time.perf_counter() - start
            check(problem, result)
            fits = result.peak_bytes <= problem.budget_bytes
            added = 100 * result.added_ns / problem.costs.step_ns
            count = int(dict(result.stats).get("evaluations", 0))
            rows.append(Answer(name, label, batch, fits, added, seconds, count))
    return rows


def curve(step: GrowingBatch, batch: int, particles: int) -> list[Turn]:
    """The turns of the swarm."""
    turns: list[Turn] = []
    Swarm(PolicySpace.of_all(step.at(batch))[0].policies, particles, observe=turns.append).run()
    return turns


def plot(curves: dict[str, list[Turn]], path: Path) -> None:
    """A picture of the turns: worst, average and best added time of each network, as in the paper's Figure 8."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(3.2 * len(curves), 3), squeeze=False)
    for axis, (name, turns) in zip(axes[0], curves.items()):
        fit = [(i + 1, turn) for i, turn in enumerate(turns) if turn.best_ns is not None]
        numbers = [i for i, _ in fit]
        axis.plot(numbers, [turn.worst_ns / 1e6 for _, turn in fit], label="worst that fits", color="0.7")
        axis.plot(numbers, [turn.average_ns / 1e6 for _, turn in fit], label="average", color="tab:orange")
        axis.plot(numbers, [(turn.best_ns or 0) / 1e6 for _, turn in fit], label="best so far", color="tab:blue")
        axis.set(title=name, xlabel="turn")
    axes[0][0].set_ylabel("added time, ms")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def tables(largest_rows: Sequence[Largest], answer_rows: Sequence[Answer]) -> str:
    """Both tables as Markdown, and what they come to."""
    planners = list(dict.fromkeys(row.planner for row in largest_rows))
    of = {(row.model, row.planner): row for row in largest_rows}
    models = list(dict.fromkeys(row.model for row in largest_rows))
    lines = [f"| largest batch (samples/s) | {' | '.join(planners)} | paper: PyTorch, Capuchin, HOME |"]
    lines.append("|---" + "|--:" * (len(planners) + 1) + "|")
    for model in models:
        cells = [f"{of[model, p].batch} ({of[model, p].samples_per_s:.0f})" for p in planners]
        batches, speeds, _, _ = PAPER[model]
        paper = ", ".join(f"{batch} ({speed})" for batch, speed in zip(batches, speeds))
        lines.append(f"| {model} | {' | '.join(cells)} | {paper} |")
    for above, below in (("home", "capuchin"), ("auto", "capuchin"), ("auto", "home")):
        ratio = statistics.mean(of[model, above].batch / of[model, below].batch for model in models)
        lines.append(f"\n{above} over {below}, mean of the largest batches: {ratio:.3f}")
    labels = list(dict.fromkeys(row.planner for row in answer_rows))
    lines += [
        "",
        f"| added time (s of planning) | batch | {' | '.join(labels)} |",
        "|---|--:" + "|--:" * len(labels) + "|",
    ]
    cases: dict[tuple[str, int], dict[str, Answer]] = {}
    for row in answer_rows:
        cases.setdefault((row.model, row.batch), {})[row.planner] = row
    for (model, batch), by in cases.items():
        cells = [f"{by[p].added_percent:.2f} % ({by[p].seconds:.2f})" if by[p].fits else "–" for p in labels]
        lines.append(f"| {model} | {batch} | {' | '.join(cells)} |")
    for mine in ("auto", "auto, quick"):
        behind = [
            f"{case[0]} at {case[1]} ({by[mine].added_percent:.2f} against {by[p].added_percent:.2f} % of {p})"
            for case, by in cases.items()
            for p in labels
            if not p.startswith("auto")
            and by[p].fits
            and not (by[mine].fits and by[mine].added_percent <= by[p].added_percent + 1e-9)
        ]
        faster = statistics.median(by["home"].seconds / by[mine].seconds for by in cases.values())
        lines.append(f"\n{mine}: planned {faster:.1f} times as fast as home (median)")
        lines.append(f"behind another: {', '.join(behind) or 'nowhere'}")
    judged = [row for row in answer_rows if row.evaluations]
    for model in models:
        own = [1e3 * row.seconds / row.evaluations for row in judged if row.model == model]
        if own:
            took = f"{statistics.median(own):.4f} ms on two threads, {PAPER[model][3]} ms in the paper"
            lines.append(f"\n{model}: one policy judged in {took}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Staying:
    """`auto` where nothing may be moved."""

    name: ClassVar[str] = "auto"

    def plan(self, problem: RematProblem) -> PlanResult:
        """The plan without transfers."""
        return Auto().plan(replace(problem, offload_bytes=0))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(CIFAR), choices=list(CIFAR))
    parser.add_argument("--particles", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    home = Home(particles=options.particles)
    largest_rows: list[Largest] = []
    answer_rows: list[Answer] = []
    curves = {}
    for name in options.models:
        build, pixels = CIFAR[name]
        step = image_step(name, build, pixels, CIFAR_CLASSES, GPUS["rtx2080ti"], states=1)
        found = largest(name, step, (SaveAll(), Vdnn(), SuperNeurons(), Delta(), Capuchin(), home, Auto()))
        largest_rows += found
        by = {row.planner: row.batch for row in found}
        batches = [by["save_all"] + int(part * (by["capuchin"] - by["save_all"])) for part in PARTS]
        planners: list[tuple[str, Planner]] = [
            (planner.name, planner) for planner in (Vdnn(), SuperNeurons(), Delta(), Capuchin(), home, Auto())
        ]
        planners += [("auto, quick", Auto(effort=QUICK)), ("auto, nothing moved", _Staying())]
        answer_rows += answers(name, step, batches, planners)
        curves[name] = curve(step, batches[-1], options.particles)
        # After each network, since a whole run takes long.
        if options.json:
            rows = {"largest": [asdict(row) for row in largest_rows], "answers": [asdict(row) for row in answer_rows]}
            options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(tables(largest_rows, answer_rows))
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
