"""What processes of their own answer about steps of FSDP2 on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fitting.paper_models import WIDTH, WORDS, Block
from remat_compiler.fitting.counted_step import BACKWARD, FORWARD, count, settle
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_step import on_paper
from remat_compiler.fitting.request import FitRequest
from remat_compiler.report.store import reports

RANKS = 8


class Body(nn.Module):
    """Dynamo leaves the loop to eager, since it comes to FSDP2's hooks in it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Whole(nn.Module):
    """A language model whose words and loss are compiled, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(WORDS, WIDTH), Body(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.body(2 * self.words(tokens))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """One rank's step of a language model whose blocks are sharded one by one."""
    _join()
    return _sharded_on(init_device_mesh("cuda", (RANKS,)), Whole())


def make_hybrid() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The same in two groups of ranks that each have the whole model."""
    _join()
    return _sharded_on(init_device_mesh("cuda", (2, RANKS // 2), mesh_dim_names=("replicate", "shard")), Whole())


def make_offloaded() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The first one on a few words, with parameters and gradients on the host."""
    _join()
    policy = CPUOffloadPolicy(pin_memory=False)
    return _sharded_on(init_device_mesh("cuda", (RANKS,)), Whole(), policy, (1, 8))


def _join() -> None:
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=RANKS)


def _sharded_on(
    mesh: DeviceMesh, model: Whole, offload: OffloadPolicy | None = None, shape: tuple[int, int] = (8, 128)
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for part in (*model.body.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, offload_policy=offload or OffloadPolicy())
    tokens = torch.zeros(shape, dtype=torch.long)
    return model, (tokens, tokens.clone())


def sharded(
    budgets: tuple[object, ...], make: Callable[[], Any] = make
) -> list[tuple[int, int | None, int | None, int, int]]:
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
