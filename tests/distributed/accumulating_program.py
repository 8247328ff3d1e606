"""What each rank of `test_accumulating` runs: gradients that add up over micro-batches before they are exchanged.

python accumulating_program.py RANK SIZE FOLDER [case ...]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import remat_compiler
from distributed.rank_process import OPTIONS, RANK, SIZE, difference, run_all
from distributed.sharded_program import OF_GLOO, Model, words_of
from instruments.measure import measure_step

WIDTH, ROWS, LAYERS, MICRO_BATCHES = 64, 256, 8, 2
BUCKET_BYTES = 4 * 2 * (WIDTH * WIDTH + WIDTH)
"""About two layers."""

FEW_ROWS_BYTES = 199_000
"""Budget of steps of so few rows that gradients take most of it: 5 % less than without one."""


class Net(nn.Module):
    """Layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.softmax(torch.tanh(layer(x)), -1)
        return x.square().mean()


def rows_of(rank: int, batch: int, rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * rank + batch))


def measured(step: Callable[[], None], model: nn.Module) -> dict[str, Any]:
    """Peaks of steps, and what is predicted of them."""

    def whole_step() -> None:
        model.zero_grad()
        step()

    # Gradients from before are planned for after the second micro-batch; DDP makes its buckets anew in the second step.
    peaks = measure_step(whole_step, steps=3, warmup=2, without=OF_GLOO).peaks_bytes
    made = remat_compiler.reports()
    figures = made[-1].step
    assert figures is not None
    return {
        # Gloo's threads may hold a buffer for a little longer than the step needs it: only more, and not in every step.
        "measured": min(peaks),
        "predicted": figures.peak_bytes,
        "limit": figures.limit_bytes,
        "before": figures.gradient_bytes,
        "graphs": len(made),
        "added": sum(one.added_ns for one in made),
    }


def anew(budget: object) -> dict[str, Any]:
    """The options of the next model, with nothing left of the one before."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    return {"backend": "remat", "options": {**OPTIONS, "memory_budget": budget}, "dynamic": False}


def bucketed(budget: object, *, rows: tuple[int, int] = (ROWS, ROWS), **given: Any) -> dict[str, Any]:
    """Steps of DDP with several buckets, with so many rows on each rank."""
    net, whole = Net(), Net()
    model = DistributedDataParallel(net, bucket_cap_mb=BUCKET_BYTES / 2**20, **given)
    call = torch.compile(model, **anew(budget))
    batches = [[rows_of(rank, batch, rows[rank]) for rank in range(SIZE)] for batch in range(MICRO_BATCHES)]

    def step() -> None:
        for x in batches[:-1]:
            with model.no_sync():
                call(x[RANK]).backward()
        call(batches[-1][RANK]).backward()

    found = measured(step, net)
    for batch in batches:
        (sum(map(whole, batch)) / SIZE).backward()
    error = difference([one.grad for one in net.parameters()], [one.grad for one in whole.parameters()])
    return {**found, "error": error}


def sharded(budget: object, *, synced: bool, half: bool = False) -> dict[str, Any]:
    """Steps of FSDP2, in each micro-batch of which gradients are scattered (`synced`), or in the last one only."""
    torch.manual_seed(0)
    model, given = Model(), anew(budget)
    torch.manual_seed(0)
    whole = Model()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    for part in [model.words, *model.blocks, model.loss]:
        part.compile(**given)
        fully_shard(part, mp_policy=policy)
    fully_shard(model)
    batches = [[words_of(SIZE * batch + rank) for rank in range(SIZE)] for batch in range(MICRO_BATCHES)]

    def step() -> None:
        for i, words in enumerate(batches):
            model.set_requires_gradient_sync(synced or i == MICRO_BATCHES - 1)
            model(words[RANK]).backward()

    found = measured(step, model)
    for batch in batches:
        (sum(map(whole, batch)) / SIZE).backward()
    gradients = [None if one.grad is None else one.grad.full_tensor() for one in model.parameters()]
    return {**found, "error": difference(gradients, [one.grad for one in whole.parameters()])}


def against_free(steps: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
    """Steps under a budget that is smaller by half of the gradients than what they take on the larger rank."""
    most = torch.tensor(steps("1GiB")["measured"])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return steps(int(most) - 66_000)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "buckets": partial(bucketed, FEW_ROWS_BYTES, rows=(8, 8)),
    "views": partial(against_free, partial(bucketed, gradient_as_bucket_view=True)),
    "one plans again": partial(against_free, partial(bucketed, rows=(ROWS, 2 * ROWS))),
    "shards": partial(sharded, 0.85, synced=True),
    "whole": partial(sharded, 0.85, synced=False),
    "half": partial(sharded, 0.95, synced=False, half=True),
}


def main() -> None:
    """Run everything; the results go to the folder."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES
    run_all(CASES)


if __name__ == "__main__":
    main()
