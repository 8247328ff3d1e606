"""What each rank of `test_sharded_peaks` runs: trains under FSDP2 and budgets, and tells predicted and measured peaks.

python sharded_program.py RANK SIZE FOLDER [hybrid | few] CASES

With "hybrid", the ranks are two groups that each shard the whole model, and reduce their gradients among each other.
With "few", words are so few that what is gathered and scattered takes most of a step.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

import remat_compiler
from instruments.measure import measure_step

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
HYBRID, FEW = "hybrid" in sys.argv[4:], "few" in sys.argv[4:]
OPTIONS: dict[str, Any] = {"inner": "eager", "max_slowdown": None, "cost_model": "nominal"}
WIDTH, WORDS, BLOCKS = 64, 100, 4
OF_GLOO = ("c10d::", "gloo:")
"""Within these, gloo takes buffers for itself."""


class Words(nn.Module):
    """Words to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words) * 2


class Block(nn.Module):
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Loss(nn.Module):
    """Vectors to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return functional.cross_entropy(self.out(x).float(), words)


class Model(nn.Module):
    """All of its computation lies in modules that are compiled one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks, self.loss = Words(), nn.ModuleList(Block() for _ in range(BLOCKS)), Loss()

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, words)


def mesh() -> DeviceMesh | None:
    """Two groups of ranks where the model is sharded in each; else all ranks."""
    return init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicate", "shard")) if HYBRID else None


def words_of(rank: int) -> Tensor:
    return torch.randint(WORDS, (16 if FEW else 256,), generator=torch.Generator().manual_seed(rank))


def error(model: nn.Module) -> float:
    """Largest difference of gradients to those of one process on all ranks' words, relative to the largest one."""
    torch.manual_seed(0)
    whole = Model()
    (sum(whole(words_of(rank)) for rank in range(SIZE)) / SIZE).backward()
    found = [None if one.grad is None else one.grad.full_tensor() for one in model.parameters()]
    expected = [one.grad for one in whole.parameters()]
    most = max(float(one.abs().max()) for one in expected if one is not None)
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True) if a is not None) / most


def trained(
    budget: object, keep: bool = False, half: bool = False, cast: bool = False, frozen: bool = False
) -> dict[str, Any]:
    """Peaks of steps under a budget.

    Args:
        budget: The `memory_budget`.
        keep: Whether parameters stay gathered between forward and backward.
        half: Whether they are gathered in bfloat16.
        cast: Whether they are in bfloat16 themselves, and their gradients reduced in float32.
        frozen: Whether only the norms of the layers are trained.
    """
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
    model = Model()
    parts = [model.words, *model.blocks, model.loss]
    policy = MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32 if half or cast else None)
    if cast:
        model.bfloat16()
    if frozen:
        for block in model.blocks:
            block.up.requires_grad_(False)
            block.down.requires_grad_(False)
    for part in parts:
        part.compile(backend="remat", options={**OPTIONS, "memory_budget": budget}, dynamic=False)
        fully_shard(part, mesh=mesh(), reshard_after_forward=not keep, mp_policy=policy)
    fully_shard(model, mesh=mesh())
    words = words_of(RANK)

    def step() -> Tensor:
        model.zero_grad()
        loss: Tensor = model(words)
        loss.backward()
        return loss.detach()

    losses = [float(step()) for _ in range(2)]
    measured = measure_step(step, steps=3, warmup=0, without=OF_GLOO)
    last = remat_compiler.reports()[-1].step
    assert last is not None
    # Gloo's threads may hold a buffer for a little longer than the step needs it: only more, and not in every step.
    return {
        "losses": losses,
        "measured": min(measured.peaks_bytes),
        "predicted": last.peak_bytes,
        "limit": last.limit_bytes,
        "sharded": last.sharded_bytes,
        "error": error(model),
        "added": sum(report.added_ns for report in remat_compiler.reports()),
    }


def main() -> None:
    """Run everything; the results go to the folder."""
    os.environ["REMAT_CACHE_DIR"] = str(FOLDER / f"cache{RANK}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{FOLDER / 'store'}", timedelta(seconds=120), rank=RANK, world_size=SIZE)
    found = {}
    others = {"kept": partial(trained, keep=True), "half": partial(trained, half=True)}
    if HYBRID:
        others = {"cast": partial(trained, cast=True)}
    elif FEW:
        others["frozen"] = partial(trained, frozen=True, half=True)
    runs = {"plain": trained, **others}
    for name in sys.argv[4:]:
        if name in ("hybrid", "few"):
            continue
        run = runs[name]
        free = found[name] = run("1GiB")
        if not FEW:  # there is next to nothing to compute again
            found[f"{name} limited"] = run(int(0.85 * free["predicted"]))
    (FOLDER / f"rank{RANK}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
