"""Seeds that a GPU's attention returns on the CPU: they take nothing of the GPU, and no plan moves them."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.storages import storage_bytes
from remat_compiler.dry_run.storage_tracker import StorageTracker

EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
SHAPE = (2, 4, 32, 16)


def attention_graph() -> list[fx.Node]:
    """Attention, and its four results."""
    graph = fx.Graph()
    query = graph.placeholder("primals_1")
    attention = graph.call_function(EFFICIENT, (query, query, query, None, True, 0.1))
    with torch_compat.FakeTensorMode():
        query.meta["val"] = torch.empty(SHAPE, device="cuda")
        attention.meta["val"] = EFFICIENT(*[query.meta["val"]] * 3, None, True, 0.1)
    results = [graph.call_function(operator.getitem, (attention, i)) for i in range(4)]
    for i, node in enumerate(results):
        node.meta["val"] = attention.meta["val"][i]
    return results


def test_seeds_have_no_bytes_on_the_gpu() -> None:
    output, sums, seed, offset = attention_graph()
    assert storage_bytes(output) == 2 * 4 * 32 * 16 * 4
    assert storage_bytes(sums) > 0
    assert (storage_bytes(seed), storage_bytes(offset)) == (0, 0)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_dry_run_counts_what_lies_on_the_gpu(device: str) -> None:
    mode = torch_compat.FakeTensorMode()
    with mode, StorageTracker(mode, device, ()) as tracker:
        query = torch.empty(SHAPE, device=device)
        before = tracker.live_bytes
        results = EFFICIENT(query, query, query, None, True, 0.1)
        assert [one.device.type for one in results] == [device, device, "cpu", "cpu"]
        counted = 2 if device == "cuda" else 4
        assert tracker.live_bytes - before == sum(map(torch_compat.allocated_bytes, results[:counted]))
