"""What each rank of `test_pipelines` runs: pipelines of micro-batches under budgets; tells what came of it.

python pipelines_program.py RANK SIZE FOLDER SCHEDULE...
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

import remat_compiler
from instruments.measure import measure_step

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
NAMES = sys.argv[4:]
OPTIONS: dict[str, Any] = {"inner": "eager", "max_slowdown": None, "cost_model": "nominal"}
SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
}
"""The schedules, and how many stages each rank has."""
WIDTH, TOKENS, MICRO_BATCHES = 32, 24, 4
BATCH = 8 * MICRO_BATCHES


class Block(nn.Module):
    """Attention of one head, and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention(F.layer_norm(x, (WIDTH,))).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / WIDTH**0.5, -1) @ v)
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (WIDTH,)))))


class Stage(nn.Module):
    """Some blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Warnings(logging.Handler):
    """The texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one more."""
        self.texts.append(record.getMessage())


def mean_square(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def stages_of(count: int) -> list[Stage]:
    torch.manual_seed(0)
    return [Stage(4 // count) for _ in range(count)]


def batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=draw), torch.randn(BATCH, TOKENS, WIDTH, generator=draw)


def told(schedule_of: Callable[..., Any], budget: object, on_each: int, steps: int) -> dict[str, Any]:
    """Some steps of a pipeline with `on_each` stages on each rank.

    Returns:
        The largest difference of gradients and losses to those of one process, the measured peaks of the steps, the
        peaks, budgets and added times of the graphs and of their step, and the warnings.
    """
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    modules, whole = stages_of(on_each * SIZE), nn.Sequential(*stages_of(on_each * SIZE))
    mine = range(RANK, on_each * SIZE, SIZE)
    for i in mine:
        remat_compiler.compile(modules[i], memory_budget=budget, dynamic=False, **OPTIONS)
    # The loss is a graph of the step, too: what an eager one saves is in no plan.
    loss_of = torch.compile(mean_square, backend="remat", options={"memory_budget": budget, **OPTIONS}, dynamic=False)
    stages = [PipelineStage(modules[i], i, on_each * SIZE, torch.device("cpu")) for i in mine]
    schedule = schedule_of(stages if on_each > 1 else stages[0], MICRO_BATCHES, loss_fn=loss_of)
    (x, target), losses = batch(), []
    is_last = on_each * SIZE - 1 in mine
    given: dict[str, Any] = {"target": target, "losses": losses} if is_last else {}

    def step() -> None:
        schedule.step(*([x] if RANK == 0 else []), return_outputs=False, **given)

    found, peaks = Warnings(), []
    logging.getLogger("remat_compiler").addHandler(found)
    for _ in range(steps):
        for i in mine:
            modules[i].zero_grad()
        peaks += measure_step(step, steps=1, warmup=0).peaks_bytes
    logging.getLogger("remat_compiler").removeHandler(found)
    expected = mean_square(whole(x), target)
    expected.backward()
    pairs = [(a.grad, b.grad) for i in mine for a, b in zip(modules[i].parameters(), whole[i].parameters())]
    if is_last:
        pairs.append((sum(losses) / MICRO_BATCHES, expected))
    return {
        "error": max(float((a - b).abs().max()) for a, b in pairs),
        "measured": peaks,
        "reports": [
            (one.peak_bytes, one.budget_bytes, one.added_ns, None if one.step is None else one.step.peak_bytes)
            for one in remat_compiler.reports()
        ],
        "warnings": found.texts,
    }


def main() -> None:
    """Run everything; the results go to the folder."""
    os.environ["REMAT_CACHE_DIR"] = str(FOLDER / f"cache{RANK}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{FOLDER / 'store'}", timedelta(seconds=120), rank=RANK, world_size=SIZE)
    found: dict[str, Any] = {}
    if "zero bubble" in NAMES:
        found["zero bubble"] = told(ScheduleInterleavedZeroBubble, 0.7, 2, steps=2)
    for name, (schedule_of, on_each) in SCHEDULES.items():
        if name not in NAMES:
            continue
        loose = told(schedule_of, "1GiB", on_each, steps=2)
        # The ranks' budgets differ, as their peaks do.
        budget = int(0.6 * loose["measured"][-1])
        tight = told(schedule_of, budget, on_each, steps=3)
        found |= {name: loose, f"{name}, tight": tight | {"budget": budget}}
    (FOLDER / f"rank{RANK}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
