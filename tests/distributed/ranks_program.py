"""What each rank of `test_ranks` runs: trains small models under budgets, and tells what came of it.

    python ranks_program.py RANK SIZE FOLDER [crash]

The ranks measure other times, as on devices that are not the same, and have caches of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from distributed.rank_process import MODE, OPTIONS, RANK, SIZE, begin, difference, run_all, tell
from remat_compiler.distributed.agreement import Alone, agreeing_by
from remat_compiler.partition import stages

ROWS = 64


class Block(nn.Module):
    """A layer with an activation that is worth saving, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 96), nn.Linear(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.softmax(torch.tanh(self.first(x)), -1))


class Net(nn.Module):
    """Blocks; a parameter that no output depends on where asked."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.unused = nn.Parameter(torch.ones(3)) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def rows_of(rank: int, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(rank))


def whole_gradients(unused: bool = False, rows: Callable[[int], int] = lambda rank: ROWS) -> list[Tensor | None]:
    """Gradients of one process, of the mean of all ranks' losses."""
    net = net_of(unused)
    (sum(net(rows_of(rank, rows(rank))) for rank in range(SIZE)) / SIZE).backward()
    return [one.grad for one in net.parameters()]


def net_of(unused: bool = False) -> Net:
    torch.manual_seed(0)
    return Net(unused)


def ddp(unused: bool = False, on_infeasible: str = "error", **given: Any) -> float:
    """Two steps of DDP, the second of two micro-batches of which only the last one is exchanged."""
    net = net_of(unused)
    model = DistributedDataParallel(net, **given)
    options = {**OPTIONS, "on_infeasible": on_infeasible}
    call = torch.compile(model, backend="remat", options=options, dynamic=False)
    call(rows_of(RANK)).backward()
    first = difference([one.grad for one in net.parameters()], whole_gradients(unused))
    net.zero_grad()
    if not given.get("static_graph"):
        with model.no_sync():
            call(rows_of(RANK)).backward()
        call(rows_of(RANK)).backward()
        twice = [None if one is None else 2 * one for one in whole_gradients(unused)]
        return max(first, difference([one.grad for one in net.parameters()], twice))
    return first


def lengths() -> float:
    """Each rank has inputs of another length, which change from step to step."""
    net = net_of()
    call = torch.compile(DistributedDataParallel(net), backend="remat", options={**OPTIONS, "memory_budget": "1MiB"})
    errors = []
    for step in range(3):
        rows = lambda rank, step=step: ROWS + 8 * rank * step  # noqa: E731
        net.zero_grad()
        call(rows_of(RANK, rows(RANK))).backward()
        errors.append(difference([one.grad for one in net.parameters()], whole_gradients(rows=rows)))
    return max(errors)


def failing() -> float:
    """The planner of the last rank fails: that rank trains without a plan."""

    def fail(*given: Any) -> Any:
        raise ZeroDivisionError("a defect")

    if RANK < SIZE - 1:
        return ddp(on_infeasible="min")
    with patch.object(stages.JointStages, "plan_in_order", fail):
        return ddp(on_infeasible="min")


def fsdp(whole: bool) -> float:
    """FSDP2, compiled as a whole or block by block."""
    net, options = net_of(), {**OPTIONS, "memory_budget": 0.8}
    if not whole:
        for block in net.blocks:
            block.compile(backend="remat", options=options, dynamic=False)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    call: Any = torch.compile(net, backend="remat", options=options, dynamic=False) if whole else net
    for _ in range(2):
        net.zero_grad()
        call(rows_of(RANK)).backward()
    found = [one.grad.full_tensor() for one in net.parameters()]  # type: ignore[union-attr]
    return difference(found, whole_gradients())


def by_themselves() -> float:
    """DDP whose ranks do not agree."""
    with agreeing_by(Alone()):
        return ddp()


def crash() -> None:
    """The last rank ends while it plans; what the others get goes to the folder."""

    def end(*given: Any) -> Any:
        os._exit(3)

    try:
        if RANK == SIZE - 1:
            with patch.object(stages.JointStages, "plan_in_order", end):
                ddp()
        ddp()
    except RuntimeError as error:
        tell(str(error))


def main() -> None:
    """Run everything; the results go to the folder."""
    if MODE == ["crash"]:
        begin()
        crash()
        return
    run_all(
        {
            "by themselves": by_themselves,
            "ddp": ddp,
            "ddp again": ddp,
            "unused": lambda: ddp(True, find_unused_parameters=True),
            "static": lambda: ddp(static_graph=True),
            "lengths": lengths,
            "failing": failing,
            "fsdp blocks": lambda: fsdp(False),
            "fsdp whole": lambda: fsdp(True),
        }
    )


if __name__ == "__main__":
    main()
