"""Models of `tensor_program`, each in the form of one process, which gives the gradients to expect, and in parts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS = 32, 4


class Block(nn.Module):
    """A norm and two layers, of which the first is split by columns and the second by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(nn.functional.gelu(torch.tanh(self.first(self.norm(x)))))


class Attention(nn.Module):
    """Self-attention; with `ranks`, of a sequence that is split among them, each computing some of the heads."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.project, self.out, self.ranks = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), ranks

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        projected = self.project(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        if self.ranks > 1:
            # The dimension that is exchanged comes first: heads out, parts of the sequence in.
            by_part = _exchanged(projected.permute(3, 1, 0, 2, 4)).view(
                self.ranks, -1, length, batch, 3, WIDTH // HEADS
            )
            projected = by_part.permute(3, 0, 2, 4, 1, 5).reshape(batch, self.ranks * length, 3, -1, WIDTH // HEADS)
        query, key, value = (projected[:, :, i].transpose(1, 2) for i in range(3))
        found = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        if self.ranks > 1:
            by_heads = _exchanged(found.transpose(0, 1)).view(self.ranks, length, batch, -1, WIDTH // HEADS)
            found = by_heads.permute(2, 1, 0, 3, 4)
        return x + self.out(torch.tanh(found.reshape(batch, length, WIDTH)))


def _exchanged(value: Tensor) -> Tensor:
    """Equal parts of the first dimension, one from each rank, as in DeepSpeed-Ulysses."""
    parts: Any = collectives.all_to_all_single_autograd(value.contiguous(), None, None, dist.group.WORLD)
    return parts  # type: ignore[no-any-return]


class Net(nn.Module):
    """Two equal blocks, each a checkpoint region where asked."""

    def __init__(self, block: type[nn.Module] = Block, checkpointed: bool = False, **given: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(**given) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x.square().mean()


def net_of(block: type[nn.Module] = Block, **given: Any) -> Net:
    torch.manual_seed(0)
    return Net(block, **given)


def split_by_tensor(block: nn.Module, mesh: Any) -> None:
    """Tensor parallelism."""
    parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def split_by_sequence(block: nn.Module, mesh: Any) -> None:
    """Tensor parallelism whose norms see a part of the sequence each."""
    styles = {
        "norm": SequenceParallel(use_local_output=True),
        "first": ColwiseParallel(input_layouts=Shard(1)),
        "second": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(block, mesh, styles)


class _Gathered(nn.Module):
    """A parameter of which each rank holds a part, gathered where it is read."""

    def forward(self, part: DTensor) -> Tensor:
        whole: Tensor = part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
        return whole


def shard_simply(net: nn.Module, mesh: Any) -> None:
    """FSDP within the graph, as torchtitan's `simple_fsdp` does: no hooks, only collectives."""
    for module in list(net.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
            parametrize.register_parametrization(module, name, _Gathered(), unsafe=True)
