"""What processes of their own answer about steps of FSDP2 on paper."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fitting.paper_models import WORDS, Language
from remat_compiler.fitting.counted_step import BACKWARD, FORWARD, count, settle
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_step import on_paper
from remat_compiler.fitting.request import FitRequest
from remat_compiler.report.store import reports

RANKS = 8


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """One rank's step of a language model whose blocks are sharded one by one."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=RANKS)
    # Values of a mesh of two dimensions are asked for when it is made.
    mesh = init_device_mesh("cuda", (RANKS // 2, 2), mesh_dim_names=("replicas", "shards"))
    model, policy = Language(blocks=4), MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["shards"], mp_policy=policy)
    tokens = torch.zeros(8, 128, dtype=torch.long) % WORDS
    return model, (tokens, tokens.clone())


def sharded(budgets: tuple[object, ...]) -> list[tuple[int, int | None, int | None, int, int]]:
    """For each budget: bytes taken, predicted, and allowed; bytes of a rank's parameters; most runs of a graph."""
    request = FitRequest(make, "h100", options={"inner": "eager", "max_slowdown": None})
    found = []
    for budget in budgets:
        with on_paper("h100") as (_, mode):
            step = made_step(request, None)
            step.compile(budget)  # type: ignore[arg-type]
            settle(step)
            counted = count(step, mode)
            made = reports()
            whole = made[-1].step
            assert whole is not None
            taken = max(counted.peaks[FORWARD], counted.peaks[BACKWARD])
            local = sum(one.to_local().nbytes for one in step.model.parameters())
            runs = max(one.runs for one in made)
            found.append((taken, whole.peak_bytes, whole.limit_bytes, local, runs))
    return found
