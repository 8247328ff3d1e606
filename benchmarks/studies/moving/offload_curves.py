"""What moving values gives GPT-2 XL and Llama 3 8B on an H100, by the speed of its link to the host.

    python -m studies.moving.offload_curves [--models gpt2-xl ...] [--positions 0.75 0.5 0.25] [--json OUT] [--plot OUT]

The steps are compiled on paper, down to the kernels that Inductor would write; times are modelled at the data sheet's
rates (`costs.rates.paper_rates`), so all of this is a model's word and nothing was measured.  Budgets stand at
positions between the smallest peak that recomputation alone reaches (0) and the peak without a budget (1).  A link is
as fast in both directions at once, and copies reach the rate that is given: PCI Express 4 and 5 reach about 25 and 50
GB/s, and GB200's link 450 at most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from remat_compiler.costs.links import LATENCY_NS
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest
from remat_compiler.ir.plan import Tier
from remat_compiler.ir.problem import Link, RematProblem
from remat_compiler.observer import Observer, observed_by
from remat_compiler.simulate.transfers import moved_bytes
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

SPEEDS = (0, 8, 16, 25, 50, 100, 200, 450)
"""GB/s in each direction; 0 is no link."""
POSITIONS = (0.75, 0.5, 0.25)


def gpt2_xl(batch: int) -> tuple[Any, ...]:
    """GPT-2 XL at 1,024 tokens."""
    import torch
    from torch.nn import functional
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25, use_cache=False))
    tokens = torch.zeros(batch, 1024, dtype=torch.long)

    def loss(outputs: Any) -> Any:
        return functional.cross_entropy(outputs.logits.flatten(0, 1).float(), tokens.flatten())

    return model, {"input_ids": tokens}, loss


def llama3_8b(batch: int) -> tuple[Any, ...]:
    """Llama 3 8B at 8,192 tokens, in bfloat16."""
    import torch
    from torch.nn import functional
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
        use_cache=False,
    )
    tokens = torch.zeros(batch, 8192, dtype=torch.long)

    def loss(outputs: Any) -> Any:
        return functional.cross_entropy(outputs.logits.flatten(0, 1).float(), tokens.flatten())

    return LlamaForCausalLM(config).to(torch.bfloat16), {"input_ids": tokens}, loss


REQUESTS = {
    "gpt2-xl": FitRequest(gpt2_xl, "h100", batches=(8,), autocast="bf16"),
    "llama3-8b": FitRequest(llama3_8b, "h100", batches=(1,)),
}
"""GPT-2 XL, 8 sequences, autocast; Llama 3 8B, 1 sequence."""


class _Found(BaseException):
    """Ends a compilation once the problem is there."""


class _Watch(Observer):
    def __init__(self) -> None:
        self.problem: RematProblem | None = None

    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        self.problem = partition.problem
        raise _Found


def problem_here(request: FitRequest) -> RematProblem:
    """The planning problem of a step that is one graph; for a process of its own."""
    from remat_compiler.fitting.made_step import made_step
    from remat_compiler.fitting.paper_step import on_paper

    watch = _Watch()
    with on_paper(request.device), observed_by(watch):
        step = made_step(request, request.batch)
        step.compile(None)
        with suppress(_Found):
            step.run()
    assert watch.problem is not None
    return watch.problem


@dataclass(frozen=True, slots=True)
class Point:
    """One plan.

    Attributes:
        model: Name of the network.
        position: Where the budget stands.
        budget_bytes: The budget.
        gb_per_s: Speed of the link.
        added_percent: Added time in percent of the step; `None` where nothing fits.
        moved_gb: What is moved, in GB.
        seconds: Time of planning.
    """

    model: str
    position: float
    budget_bytes: int
    gb_per_s: float
    added_percent: float | None
    moved_gb: float
    seconds: float


def points(
    name: str, problem: RematProblem, positions: Sequence[float], speeds: Sequence[float], effort: int
) -> list[Point]:
    """The plans of one network."""
    planner = Auto(effort=effort)
    problem = replace(problem, reference=None)
    high = SaveAll().plan(replace(problem, budget_bytes=1 << 62)).peak_bytes
    low = planner.smallest_peak(replace(problem, budget_bytes=0)).peak_bytes
    print(
        f"{name}: {len(problem.graph.ops)} operators, {problem.costs.step_ns / 1e6:.0f} ms; {high / 1e9:.2f} GB "
        f"without a budget, {low / 1e9:.2f} GB at least",
        flush=True,
    )
    made = []
    for position in positions:
        budget = low + int(position * (high - low))
        for speed in speeds:
            rate = int(speed * 1e9)
            links = (Link(Tier.HOST, rate, rate, LATENCY_NS),) if rate else ()
            asked = replace(
                problem,
                budget_bytes=budget,
                costs=replace(problem.costs, links=links),
                offload_bytes=(1 << 50) * bool(rate),
            )
            start = time.perf_counter()
            result = planner.plan(asked)
            seconds = time.perf_counter() - start
            assert result.plan is not None
            added = 100 * result.added_ns / problem.costs.step_ns if result.peak_bytes <= budget else None
            moved = moved_bytes(problem.graph, result.plan) / 1e9
            made.append(Point(name, position, budget, speed, added, moved, seconds))
            print(made[-1], flush=True)
    return made


def table(made: Sequence[Point]) -> str:
    """Added time by link, one row a budget."""
    speeds = sorted({point.gb_per_s for point in made})
    heads = [f"{speed:g} GB/s" if speed else "recomputed only" for speed in speeds]
    lines = [f"| added time (GB moved) | budget | {' | '.join(heads)} |"]
    lines.append("|---|--:" + "|--:" * len(speeds) + "|")
    rows: dict[tuple[str, float], dict[float, Point]] = {}
    for point in made:
        rows.setdefault((point.model, point.position), {})[point.gb_per_s] = point
    for (model, position), by in rows.items():
        cells = [
            "–"
            if by[s].added_percent is None
            else f"{by[s].added_percent:.2f} %" + (f" ({by[s].moved_gb:.1f})" if s else "")
            for s in speeds
        ]
        budget = next(iter(by.values())).budget_bytes / 1e9
        lines.append(f"| {model}, {position:.0%} | {budget:.2f} GB | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(made: Sequence[Point], path: Path) -> None:
    """Added time by speed of the link, one line a budget; dashed without a link."""
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(point.model for point in made))
    figure, axes = plt.subplots(1, len(models), figsize=(5 * len(models), 3.6), squeeze=False)
    for axis, model in zip(axes[0], models):
        for position in sorted({point.position for point in made}):
            own = [p for p in made if p.model == model and p.position == position and p.added_percent is not None]
            line = axis.plot(
                [p.gb_per_s for p in own if p.gb_per_s],
                [p.added_percent for p in own if p.gb_per_s],
                marker="o",
                label=f"budget at {position:.0%} of the range",
            )
            for p in own:
                if not p.gb_per_s:
                    axis.axhline(p.added_percent, linestyle="--", color=line[0].get_color(), linewidth=1)
        axis.set(
            title=model, xlabel="link, GB/s each way", ylabel="added time, % of the step", xscale="log", ylim=(0, None)
        )
        axis.legend(fontsize=8)
    figure.suptitle("Moving beside recomputing; dashed: recomputation alone", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(REQUESTS), choices=list(REQUESTS))
    parser.add_argument("--positions", type=float, nargs="*", default=list(POSITIONS))
    parser.add_argument("--effort", type=int, default=2_000, help="of the planner")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    made: list[Point] = []
    for name in options.models:
        problem = call_in_process(partial(problem_here, REQUESTS[name]))
        made += points(name, problem, options.positions, SPEEDS, options.effort)
    print(table(made))
    if options.json:
        options.json.write_text(json.dumps([asdict(point) for point in made], indent=1), encoding="utf-8")
    if options.plot:
        plot(made, options.plot)


if __name__ == "__main__":
    main()
