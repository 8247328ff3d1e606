"""Training loops on two processes that talk by gloo: the outcome of each rank."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import fully_shard

from end_to_end.judged_loops import Outcome, outcome_of
from end_to_end.loop_models import BATCH, WIDTH, Net, batch
from end_to_end.loop_steps import by_block
from end_to_end.training_loops import GRADIENT_BYTES, LOOPS, Loop
from forked import fork_server, free_ports, take

RANKS = 2
SECONDS = 300


def _sharded() -> nn.Module:
    """FSDP2 on each block and on the whole."""
    net = Net()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return net


def _sharded_step(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    call(batch(number + dist.get_rank())).backward()


LOOPS_OF_TWO: dict[str, Loop] = {
    "FSDP2, block by block": Loop(_sharded, _sharded_step, by_block, slack_bytes=4 * GRADIENT_BYTES),
    "FSDP2, whole model": Loop(_sharded, _sharded_step, slack_bytes=4 * GRADIENT_BYTES),
    "DDP on two ranks": LOOPS["DDP"],
    "tensor parallelism on two ranks": replace(LOOPS["tensor parallelism"], slack_bytes=2 * BATCH * WIDTH * 4),
}
"""The slack is for what FSDP gathers and scatters in eager, and for what gloo's thread lets go of late."""


def outcomes_of_two(name: str) -> list[Outcome]:
    """What each rank makes of the loop.

    Raises:
        RuntimeError: A rank died, or took more than five minutes.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        deadline = time.monotonic() + SECONDS
        start = "spawn" if fork_server() is None else "forkserver"
        arguments = (name, port, folder, dict(os.environ))
        context = multiprocessing.start_processes(_rank, arguments, nprocs=RANKS, join=False, start_method=start)
        try:
            # A join ends with the first rank that does.
            while not context.join(timeout=max(deadline - time.monotonic(), 0.0)):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name}: two ranks took more than {SECONDS} s")
        finally:
            for process in context.processes:
                process.kill()
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(RANKS)]


def _rank(rank: int, name: str, port: int, folder: str, environment: dict[str, str]) -> None:
    """One process."""
    take(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=RANKS)
    LOOPS.update(LOOPS_OF_TWO)
    outcome = outcome_of(name)
    torch.save(outcome, f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()
