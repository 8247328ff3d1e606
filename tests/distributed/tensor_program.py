"""What each rank of `test_tensor_parallel` runs: collectives within the graphs that are planned.

python tensor_program.py RANK SIZE FOLDER [case ...]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import remat_compiler
from distributed import tensor_models as models
from distributed.rank_process import OPTIONS, RANK, SIZE, difference, run_all
from distributed.tensor_models import Attention, Block, net_of
from instruments.measure import measure_step

OPTIONS["memory_budget"] = 0.65
MOST_STEPS = 40
"""Steps that are measured at most: in some, gloo's thread lets go of its tensors later than the step does."""


def batch(seed: int = 0) -> Tensor:
    """Rows, length of the sequence, width."""
    return torch.randn(4, 32, models.WIDTH, generator=torch.Generator().manual_seed(seed))


def part_of_sequence() -> Tensor:
    return batch().chunk(SIZE, 1)[RANK].contiguous()


def whole_gradients(block: type[nn.Module] = Block, seeds: int = 1) -> list[Tensor | None]:
    """Gradients of one process."""
    net = net_of(block)
    (sum(net(batch(seed)) for seed in range(seeds)) / seeds).backward()
    return [one.grad for one in net.parameters()]


def judged(net: nn.Module, x: Tensor, expected: list[Tensor | None], gradient: Callable[[Tensor], Tensor]) -> Any:
    """Difference of the gradients, and the peaks of the steps after them."""

    def step() -> None:
        net.zero_grad()
        call(x).backward()

    compiled_in_place = any(getattr(one, "_compiled_call_impl", None) for one in net.modules())
    call: Any = net if compiled_in_place else torch.compile(net, backend="remat", options=OPTIONS, dynamic=False)
    for _ in range(2):
        step()
    found = [gradient(one.grad) for one in net.parameters() if one.grad is not None]
    report = remat_compiler.reports()[-1]
    predicted_bytes = report.peak_bytes if report.step is None else report.step.peak_bytes or 0
    measured: list[int] = []
    is_over = torch.ones(1)
    # All ranks run the same number of steps.
    while len(measured) < MOST_STEPS and is_over.any():
        measured.append(measure_step(step, warmup=0).peak_bytes)
        is_over.fill_(min(measured) > predicted_bytes)
        dist.all_reduce(is_over)
    notes = [line for line in str(report).splitlines() if line.startswith("note")]
    return {"gradients": difference([*found], expected), "peaks": measured, "notes": notes}


def whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def by_tensor(in_place: bool = False, **given: Any) -> Any:
    """Tensor parallelism; with four ranks, each half of them has its part by FSDP2, too."""
    shape = (2, 2) if SIZE == 4 else (1, SIZE)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    net = net_of(**given)
    for block in net.blocks:
        models.split_by_tensor(block, mesh["tensor"])
        if in_place:
            block.compile(backend="remat", options=OPTIONS, dynamic=False)
        if SIZE == 4:
            fully_shard(block, mesh=mesh["data"])
    if SIZE == 4:
        fully_shard(net, mesh=mesh["data"])
    return judged(net, batch(), whole_gradients(), whole)


def by_sequence() -> Any:
    """Tensor parallelism whose activations are split along the sequence between the layers."""
    net = net_of()
    for block in net.blocks:
        models.split_by_sequence(block, init_device_mesh("cpu", (SIZE,)))
    return judged(net, part_of_sequence(), whole_gradients(), lambda one: whole(one) / SIZE)


def by_heads() -> Any:
    """Attention of a sequence that is split, by exchanging parts of it for heads."""

    def summed(gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total / SIZE

    with patch.dict(OPTIONS, memory_budget=0.9):
        return judged(net_of(Attention, ranks=SIZE), part_of_sequence(), whole_gradients(Attention), summed)


def simple_fsdp() -> Any:
    """Parameters that are gathered within the graph."""
    net = net_of()
    models.shard_simply(net, init_device_mesh("cpu", (SIZE,)))
    with patch.dict(OPTIONS, memory_budget=0.8):
        return judged(net, batch(RANK), whole_gradients(seeds=SIZE), whole)


def unequal() -> Any:
    """Checkpoint regions with collectives; only the last rank must recompute more than they do."""
    with patch.dict(OPTIONS, memory_budget=1.0 if RANK < SIZE - 1 else 0.9):
        return by_tensor(checkpointed=True)


def on_inductor() -> Any:
    """Tensor parallelism compiled by Inductor."""
    with patch.dict(OPTIONS, inner="inductor"):
        return by_tensor()


if __name__ == "__main__":
    if SIZE == 4:
        run_all({"two meshes": lambda: by_tensor(in_place=True)})
    else:
        run_all(
            {
                "tensor": by_tensor,
                "tensor, inductor": on_inductor,
                "tensor, blocks": lambda: by_tensor(in_place=True),
                "sequence": by_sequence,
                "heads": by_heads,
                "simple fsdp": simple_fsdp,
                "unequal": unequal,
            }
        )
