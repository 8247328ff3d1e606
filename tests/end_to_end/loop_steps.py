"""Steps of training loops, and ways to compile a model, as people write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from end_to_end.loop_models import Backend, Heavy, Net, Step, batch


def one_step(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    call(batch(number)).backward()


def accumulate(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    for micro in range(3):
        (call(batch(number + micro)) / 3).backward()


def scaled(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler.scale(call(batch(number))).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def autocast(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = call(batch(number))
    loss.backward()


def optimized(call: Any, model: nn.Module, number: int) -> None:
    one_step(call, model, number)
    torch.optim.SGD(model.parameters(), lr=0.01).step()


def evaluated_between(call: Any, model: nn.Module, number: int) -> None:
    model.eval()
    with torch.no_grad():
        call(batch(number + 1))
    model.train()
    optimized(call, model, number)


def two_losses(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    loss = call(batch(number))
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()


def twice_differentiated(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    loss = call(batch(number))
    found = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], create_graph=True)
    sum(g.square().sum() for g in found).backward()  # type: ignore[union-attr]


def step_on(samples: list[Tensor]) -> Step:
    def step(call: Any, model: nn.Module, number: int) -> None:
        model.zero_grad(set_to_none=True)
        call(samples[number % len(samples)]).backward()

    return step


def without_sync(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    with call.no_sync():
        call(batch(number)).backward()
    call(batch(number + 1)).backward()


def whole_model(model: nn.Module, backend: Backend) -> Any:
    return torch.compile(model, backend=backend)


def by_block(model: nn.Module, backend: Backend) -> Any:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=backend)  # type: ignore[union-attr]
    return model


def in_ddp(model: nn.Module, backend: Backend | None, **options: Any) -> Any:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=2, **options)
    return wrapped if backend is None else torch.compile(wrapped, backend=backend)


def ddp_of_compiled(model: nn.Module, backend: Backend | None) -> Any:
    if backend is not None:
        model.compile(backend=backend)
    return DistributedDataParallel(model, bucket_cap_mb=2)


def tensor_parallel() -> nn.Module:
    """The feed-forward of each block split over the ranks."""
    net, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


def distributed_model() -> nn.Module:
    """Parameters and inputs are DTensors."""
    return distribute_module(Heavy(), init_device_mesh("cpu", (dist.get_world_size(),)))


def distributed_step(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    call(distribute_tensor(batch(number), mesh, [Replicate()])).backward()
