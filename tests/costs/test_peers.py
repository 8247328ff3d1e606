"""The price of what other ranks send: their part of the bytes, over the link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from remat_compiler import torch_compat
from remat_compiler.costs.peers import GPU_LATENCY_NS, NOMINAL_PEERS, REACHED, Peers, peers_of, received_bytes
from remat_compiler.costs.rates import paper_rates
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.gpus import gpu_named, gpu_of_product


@pytest.fixture
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_a_rank_receives_all_parts_but_its_own() -> None:
    import torch.distributed._functional_collectives as collectives

    def gather(part: Tensor) -> Tensor:
        return collectives.all_gather_tensor(part, 0, dist.group.WORLD).sin()

    graph = make_fx(gather, tracing_mode="fake")(torch.ones(10, 5)).graph
    received = {node.name: received_bytes(node) for node in graph.nodes if node.op == "call_function"}
    assert [size for size in received.values() if size is not None] == [3 * 10 * 5 * 4]


def test_gpus_receive_by_nvlink_or_else_by_pci_express() -> None:
    h100, t4 = gpu_named("h100"), gpu_named("t4")
    assert peers_of(h100) == Peers(REACHED * h100.peer_bytes_per_s, GPU_LATENCY_NS)
    assert peers_of(t4) == Peers(REACHED * t4.link_bytes_per_s, GPU_LATENCY_NS)
    assert peers_of(replace(t4, link_bytes_per_s=0.0)) == NOMINAL_PEERS == peers_of(None)
    assert paper_rates(h100).peers == peers_of(h100)
    assert gpu_of_product(h100.product) is h100
    assert gpu_of_product("a GPU of another maker") is None


def test_gloo_copies_what_it_gathers_and_scatters() -> None:
    gather, scatter = (
        getattr(torch.ops._c10d_functional, name).default
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor")
    )
    part = torch.empty(10, 5, device="meta")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        assert WorkspaceTable().probe(gather, (part, 4, name), {}) == 4 * part.nbytes
        assert WorkspaceTable().probe(scatter, (part, "sum", 2, name), {}) == part.nbytes
        # As measured on what a rank allocates by itself.
        real = torch.zeros(10, 5)
        alone = memory_of(lambda: torch.ops._c10d_functional.wait_tensor(gather(real, 1, name)))
        assert alone == WorkspaceTable().probe(gather, (real, 1, name), {})
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_other_libraries_copy_nothing_that_is_known() -> None:
    gather = torch.ops._c10d_functional.all_gather_into_tensor.default
    assert WorkspaceTable().probe(gather, (torch.empty(10, 5), 4, dist.group.WORLD.group_name), {}) == 0  # type: ignore[union-attr]
    assert WorkspaceTable().probe(gather, (torch.empty(10, 5), 4, "a group of another job"), {}) == 0


def memory_of(run: Callable[[], object]) -> int:
    """Bytes that a call allocates at once beyond its results."""
    deltas, _ = torch_compat.memory_deltas(run)
    heights = list(accumulate(deltas))
    return max(heights) - heights[-1]
