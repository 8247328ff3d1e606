"""What each of the four ranks of `test_buckets` runs: DDP with several buckets, and what could make ranks differ.

    python buckets_program.py RANK SIZE FOLDER [case or crash]

Dynamo's graph is split at the buckets, so that a step runs a planned graph for each of them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import remat_compiler
from distributed.rank_process import FOLDER, MODE, OPTIONS, RANK, SIZE, begin, difference, run_all, tell
from remat_compiler.distributed.agreement import Alone, agreeing_by
from remat_compiler.partition import stages

ROWS, STEPS = 256, 2
BUCKET_BYTES = 20_000
"""About a block's parameters."""
LENGTHS_BYTES = 750_000
"""Budget of steps whose lengths change."""
OPTIONS["memory_budget"] = 0.8


class Net(nn.Module):
    """Blocks with dropout; a parameter that no output depends on where asked."""

    def __init__(self, dropout: float, unused: bool) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))
        self.second = nn.ModuleList(nn.Linear(96, 32) for _ in range(3))
        self.dropout = dropout
        self.unused = nn.Parameter(torch.ones(3)) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second):
            x = x + nn.functional.dropout(second(torch.softmax(torch.tanh(first(x)), -1)), self.dropout)
        return x.square().mean()


def net_of(dropout: float, unused: bool) -> Net:
    torch.manual_seed(0)
    return Net(dropout, unused)


def rows_of(rank: int, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(rank))


def gradients(compiled: bool, dropout: float = 0.0, accumulated: bool = False, **given: Any) -> list[list[Any]]:
    """Gradients of each step of DDP; with `accumulated`, of two micro-batches of which the last is exchanged."""
    net = net_of(dropout, unused=given.get("find_unused_parameters", False))
    model: Any = DistributedDataParallel(net, bucket_cap_mb=BUCKET_BYTES / 2**20, **given)
    call = torch.compile(model, backend="remat", options=OPTIONS, dynamic=False) if compiled else model
    found = []
    for step in range(STEPS):
        net.zero_grad()
        torch.manual_seed(100 * RANK + step)
        if accumulated:
            with model.no_sync():
                call(rows_of(RANK)).backward()
        call(rows_of(RANK)).backward()
        found.append([None if one.grad is None else one.grad.clone() for one in net.parameters()])
    return found


def against_eager(**given: Any) -> float:
    """The largest difference from the same DDP without remat, with the same random numbers."""
    return max(map(difference, gradients(True, **given), gradients(False, **given)))


def plain() -> float:
    """The largest difference from one process on the whole batch."""
    net = net_of(0.0, False)
    (sum(net(rows_of(rank)) for rank in range(SIZE)) / SIZE).backward()
    whole = [one.grad for one in net.parameters()]
    return max(difference(found, whole) for found in gradients(True))


def one_is_slow() -> float:
    """One rank takes longer to plan than the others; the graph is static, gradients are views of the buckets."""
    plan = stages.JointStages.plan_in_order

    def slowly(*given: Any) -> Any:
        time.sleep(0.5 if RANK == 1 else 0.0)
        return plan(*given)

    with patch.object(stages.JointStages, "plan_in_order", slowly):
        return against_eager(static_graph=True, gradient_as_bucket_view=True)


def other_caches() -> float:
    """Ranks that have plans of their own in their caches: of another budget, damaged, of another version, or none."""
    cache = FOLDER / f"cache{RANK}"
    with agreeing_by(Alone()), patch.dict(OPTIONS, memory_budget=0.9 if RANK == 1 else OPTIONS["memory_budget"]):
        gradients(True)
    # Another folder, since what is known of the first one is in memory, too.
    other = FOLDER / f"other{RANK}"
    if RANK != SIZE - 1:
        shutil.copytree(cache, other)
    if RANK == 2:
        for number, file in enumerate(sorted(path for path in other.rglob("*") if path.is_file())):
            text = file.read_bytes()
            damaged = text[: len(text) // 2], b"\x00\xff", text.replace(b'version":', b'version":9')
            file.write_bytes(damaged[number % len(damaged)])
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    with patch.dict(os.environ, REMAT_CACHE_DIR=str(other)):
        return plain()


def lengths() -> float:
    """Each rank has inputs of another length, which change from step to step."""
    net = net_of(0.0, False)
    model = DistributedDataParallel(net, bucket_cap_mb=BUCKET_BYTES / 2**20)
    call = torch.compile(model, backend="remat", options={**OPTIONS, "memory_budget": LENGTHS_BYTES})
    errors = []
    for step in range(STEPS):
        net.zero_grad()
        call(rows_of(RANK, ROWS + 8 * RANK * step)).backward()
        found = [one.grad.clone() for one in net.parameters() if one.grad is not None]
        net.zero_grad()
        (sum(net(rows_of(rank, ROWS + 8 * rank * step)) for rank in range(SIZE)) / SIZE).backward()
        errors.append(difference([*found], [one.grad for one in net.parameters()]))
    return max(errors)


@contextmanager
def crashing() -> Iterator[None]:
    """The last rank ends while it plans its second bucket."""
    plan, calls = stages.JointStages.plan_in_order, iter(range(100))

    def ends(*given: Any) -> Any:
        if RANK == SIZE - 1 and next(calls) == 1:
            os._exit(3)
        return plan(*given)

    with patch.object(stages.JointStages, "plan_in_order", ends):
        yield


def main() -> None:
    """Run everything; the results go to the folder."""
    # The first bucket has a size of its own.
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES
    if MODE == ["crash"]:
        begin()
        try:
            with crashing():
                gradients(True)
        except RuntimeError as error:
            tell(str(error))
        return
    run_all(
        {
            "dropout": lambda: against_eager(dropout=0.2, accumulated=True, find_unused_parameters=True),
            "static": one_is_slow,
            "caches": other_caches,
            "lengths": lengths,
        }
    )


if __name__ == "__main__":
    main()
