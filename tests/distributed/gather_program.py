"""What each rank of `test_repeated_gathers` runs: parameters that are gathered again in the backward.

python gather_program.py RANK SIZE FOLDER [case ...]
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import remat_compiler
from distributed import tensor_models as models
from distributed.rank_process import OPTIONS, RANK, SIZE, difference, run_all
from distributed.tensor_program import batch, judged, whole, whole_gradients
from heard import warnings_heard
from remat_compiler.compilation import gathers as searched
from remat_compiler.distributed import gathers

BUDGET, INDUCTOR_BUDGET = 212_207, 218_000
"""Bytes within which no plan fits that keeps what is gathered."""
PATIENCE_S = 3.0
OPTIONS["memory_budget"] = BUDGET


def sharded() -> nn.Module:
    net = models.net_of()
    models.shard_simply(net, init_device_mesh("cpu", (SIZE,)))
    return net


def trained(**options: Any) -> Any:
    """The judged step, or the refusal, with all warnings."""
    with patch.dict(OPTIONS, **options), warnings_heard() as warnings:
        try:
            found = judged(sharded(), batch(RANK), whole_gradients(seeds=SIZE), whole)
        except remat_compiler.RematError as error:
            found = {"refused": str(error)}
    return {**found, "warnings": warnings}


def repeated() -> Any:
    return trained()


def on_inductor() -> Any:
    return trained(inner="inductor", memory_budget=INDUCTOR_BUDGET)


def voted_down() -> Any:
    """The last rank would communicate in another order; both train at the smallest peak without repeated gathers."""
    own = searched.order_of
    with patch.object(searched, "order_of", lambda *given: f"{own(*given)} {RANK}"):
        return trained(on_infeasible="min", memory_budget=BUDGET - 1)


def another_batch() -> Any:
    """A last batch that is shorter on one rank, which compiles the step again, by itself."""
    net = sharded()
    call = torch.compile(net, backend="remat", options={**OPTIONS, "memory_budget": BUDGET - 2}, dynamic=False)
    differences = []
    for short in (False, True, False):
        rows = [2 if short and rank == 0 else 4 for rank in range(SIZE)]
        net.zero_grad()
        call(batch(RANK)[: rows[RANK]]).backward()
        expected = mean_gradients([batch(rank)[: rows[rank]] for rank in range(SIZE)])
        differences.append(difference([whole(one.grad) for one in net.parameters()], expected))
    return {"gradients": max(differences), "graphs": len(remat_compiler.reports())}


def mean_gradients(batches: list[Tensor]) -> list[Tensor | None]:
    """Gradients of one process for the batches of all ranks."""
    net = models.net_of()
    (sum(net(one) for one in batches) / len(batches)).backward()
    return [one.grad for one in net.parameters()]


def crash() -> Any:
    """The last rank ends where it would vote; the others wait for it no longer than the time, and refuse the budget."""
    if RANK == SIZE - 1:
        with patch.object(gathers.GatherVotes, "vote", lambda *_: os._exit(3)):
            return trained()
    with patch.object(gathers.GatherVotes.__init__, "__defaults__", (PATIENCE_S,)):
        return trained()


if __name__ == "__main__":
    run_all(
        {
            "repeated": repeated,
            "repeated, inductor": on_inductor,
            "voted down": voted_down,
            "another batch": another_batch,
            "crash": crash,
        }
    )
