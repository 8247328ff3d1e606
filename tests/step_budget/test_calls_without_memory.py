"""Calls whose tensors have no memory of their own: subclasses that wrap others, and fakes that only ask for a shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

import remat_compiler
from remat_compiler.backend import remat
from remat_compiler.units import format_bytes

WIDTH = 64


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Six layers; `broken` makes two graphs of them."""

    def __init__(self, width: int = WIDTH, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:3]:
            x = F.gelu(layer(x))
        if self.broken:
            torch._dynamo.graph_break()
        for layer in self.layers[3:]:
            x = F.gelu(layer(x))
        return x.square().mean()


def trained(module: nn.Module, compiled: Any, inputs: list[Any]) -> list[Tensor]:
    """Losses and gradients of steps, subclasses unwrapped."""
    found = []
    for x in inputs:
        module.zero_grad(set_to_none=True)
        loss = compiled(x)
        loss.backward()
        for value in (loss, *(p.grad for p in module.parameters())):
            local = getattr(value, "_local_tensor", getattr(value, "a", value))
            found.append(local.detach().clone())
    return found


def agree(expected: list[Tensor], found: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(expected, found, strict=True))


INNER: list[Any] = ["eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("budget", ["1GiB", 1.0])
@pytest.mark.parametrize("kind", ["dtensor", "two"])
@pytest.mark.filterwarnings("ignore:TwoTensor does not implement")
def test_subclasses_train_across_a_graph_break(kind: str, budget: object, inner: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = Net(broken=True)
    inputs: list[Any] = [torch.randn(32, WIDTH) for _ in range(3)]
    if kind == "dtensor":
        mesh = init_device_mesh("cpu", (1,))
        model = distribute_module(model, mesh)
        inputs = [distribute_tensor(x, mesh, [Replicate()]) for x in inputs]
    else:
        inputs = [TwoTensor(x, x.clone()) for x in inputs]
    expected = trained(model, model, inputs)
    step = torch.compile(model, backend=remat, options={"memory_budget": budget, "inner": inner})
    assert agree(expected, trained(model, step, inputs))


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("budget", ["1GiB", 1.0])
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_bucket_of_ddp_is_planned_and_all_share_the_budget(budget: object, inner: str, dynamic: bool) -> None:
    """Dynamo runs each compiled bucket on fake tensors, to compile the next one for what it gives."""
    torch.manual_seed(0)
    model, inputs = Net(512), [torch.randn(32, 512) for _ in range(3)]
    expected = trained(model, model, inputs)
    options = {"memory_budget": budget, "inner": inner}
    wrapped = DistributedDataParallel(model, bucket_cap_mb=2)
    step = torch.compile(wrapped, backend=remat, options=options, dynamic=dynamic)
    assert agree(expected, trained(model, step, inputs))
    reports = remat_compiler.reports()
    assert len({report.graph_name for report in reports}) > 1
    assert {report.step and report.step.graphs for report in reports} == {len(reports)}


@pytest.mark.parametrize("as_views", [False, True])
def test_what_buckets_of_ddp_hold_beside_the_budget_is_told(as_views: bool) -> None:
    model = Net()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_views)
    step = torch.compile(wrapped, backend=remat, options={"memory_budget": "1GiB", "inner": "eager"})
    step(torch.randn(8, WIDTH)).sum().backward()
    (report,) = remat_compiler.reports()
    bucket_bytes = sum(parameter.nbytes for parameter in model.parameters())
    told = f"hold all gradients once more, {format_bytes(bucket_bytes)}, resident beside the budget"
    assert any(told in note for note in report.notes) != as_views
