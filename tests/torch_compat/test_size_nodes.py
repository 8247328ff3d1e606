"""Sizes that a graph reads from what it computes come from its inputs, and have the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from end_to_end.compiling import differences_from_eager
from remat_compiler.torch_compat.size_nodes import _READ, sizes_from_inputs


def sizes_read(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Nodes that read a size of a tensor that is no input."""
    found = [node for target in _READ for node in graph.find_nodes(op="call_function", target=target)]
    return [node for node in found if node.args[0].op != "placeholder"]


def padded(x: Tensor, count: Tensor) -> Tensor:
    """Reads sizes of computed tensors: sums, products, divisions and remainders."""
    joined = torch.cat([x, x.flatten()[None, :].expand(3, -1).reshape(-1, x.shape[1])])
    rows = torch.ops.aten.sym_size.int(joined, 0)
    total = torch.ops.aten.sym_numel.default(joined.relu())
    return joined.sum() * rows + total // 7 + (rows + 3) % 5


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_the_same_numbers_without_the_tensors(rows: int) -> None:
    traced = make_fx(padded, tracing_mode="symbolic")(torch.randn(4, 6), torch.zeros(()))
    symbolic = torch.fx.Graph()
    symbolic.graph_copy(traced.graph, {})
    inputs = traced.graph.find_nodes(op="placeholder")
    sizes = [n for n in inputs[0].meta["val"].shape if isinstance(n, torch.SymInt)]
    with traced.graph.inserting_before(inputs[0]):
        for number, size in enumerate(sizes):
            node = traced.graph.placeholder(f"size_{number}")
            node.meta["val"] = size
    before = len(sizes_read(traced.graph))
    sizes_from_inputs(traced.graph)
    traced.graph.eliminate_dead_code()
    traced.graph.lint()
    traced.recompile()
    assert before > 0
    assert sizes_read(traced.graph) == []
    x = torch.randn(rows, 6 if len(sizes) == 1 else rows + 1)
    assert torch.allclose(traced(*x.shape[: len(sizes)], x, torch.zeros(())), padded(x, torch.zeros(())))


def test_sizes_of_inputs_that_are_no_symbols_stay() -> None:
    """Without an input that is the symbol there is nothing to compute the size from."""
    traced = make_fx(padded, tracing_mode="symbolic")(torch.randn(4, 6), torch.zeros(()))
    before = len(sizes_read(traced.graph))
    sizes_from_inputs(traced.graph)
    assert len(sizes_read(traced.graph)) == before > 0


class Flattened(nn.Module):
    """Batch normalisation over all positions: its correction reads a size of a tensor that the forward computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(self.norm(torch.tanh(self.first(x)).flatten(0, 1)))).square().mean()


def test_batch_normalisation_of_changing_sizes_under_inductor() -> None:
    """Its correction is a fraction of sizes, which Inductor's cache would not take among the inputs of a graph."""
    counters["inductor"].clear()
    model, x = Flattened(), torch.randn(4, 9, 8)
    options = {"inner": "inductor", "memory_budget": "min", "tolerance": 1e-4}
    assert differences_from_eager(model, (x,), dynamic=True, **options) == []
    assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] >= 2
    assert counters["inductor"]["fxgraph_cache_bypass"] == 0
