"""What each rank of `test_chunks_of_ranks` runs: a loss over many classes in chunks, under DDP and FSDP2.

python chunks_program.py RANK SIZE FOLDER [case ...]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import remat_compiler
from distributed.rank_process import OPTIONS, RANK, SIZE, difference, run_all

CLASSES, WIDTH, ROWS, MICRO_BATCHES = 1024, 32, 64, 3


class Head(nn.Module):
    """Many classes, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.out(x), targets)


class Classifier(nn.Module):
    """A layer before the head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(WIDTH, WIDTH), Head()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)), targets)


def batch_of(rank: int, batch: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * rank + batch)
    return torch.randn(ROWS, WIDTH, generator=draw), torch.randint(0, CLASSES, (ROWS,), generator=draw)


def options(chunks: int | str) -> dict[str, Any]:
    asked = {**OPTIONS, "memory_budget": "min" if chunks == "auto" else 1.0, "chunks": chunks}
    return {"backend": "remat", "options": asked, "dynamic": False}


def trained(
    call: Callable[..., Tensor], found: Callable[[], list[Tensor | None]], synced: Callable[[bool], None]
) -> Any:
    """How far gradients of micro-batches are from those of one eager process, and which losses were in chunks."""
    for batch in range(MICRO_BATCHES):
        synced(batch == MICRO_BATCHES - 1)
        call(*batch_of(RANK, batch)).backward()
    whole = Classifier()
    for batch in range(MICRO_BATCHES):
        torch.stack([whole(*batch_of(rank, batch)) for rank in range(SIZE)]).mean().backward()
    chunked = [one.chunks for report in remat_compiler.reports() for one in report.chunked]
    return {"error": difference(found(), [one.grad for one in whole.parameters()]), "chunks": chunked}


def replicated(chunks: int | str) -> Any:
    """DDP, which exchanges gradients with the last micro-batch."""
    net = Classifier()
    model = DistributedDataParallel(net)

    def synced(now: bool) -> None:
        model.require_backward_grad_sync = now

    return trained(torch.compile(model, **options(chunks)), lambda: [one.grad for one in net.parameters()], synced)


def sharded(chunks: int | str) -> Any:
    """FSDP2, with the head compiled and sharded by itself."""
    model = Classifier()
    for part in (model.body, model.head):
        part.compile(**options(chunks))
        fully_shard(part)
    fully_shard(model)

    def gathered() -> list[Tensor | None]:
        return [None if one.grad is None else one.grad.full_tensor() for one in model.parameters()]

    return trained(model, gathered, model.set_requires_gradient_sync)


CASES: dict[str, Callable[[], Any]] = {
    "DDP": partial(replicated, 4),
    "FSDP2": partial(sharded, 4),
    "DDP, as planned": partial(replicated, "auto"),
}


if __name__ == "__main__":
    run_all(CASES)
