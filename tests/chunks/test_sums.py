"""Sums of what leaves a layer are computed chunk by chunk, and nothing else behind it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chunks.chunked import Chunked, beside_eager
from chunks.layer_programs import WIDTH, Adapted, FeedForward, Layer, Model
from chunks.test_losses import DECOMPOSED
from remat_compiler.capture.joined import JOINED
from remat_compiler.chunks.layers import chunk_layers
from remat_compiler.chunks.rewriting import is_in_chunks

_ADD = torch.ops.aten.add.Tensor


class Beside(FeedForward):
    """A layer with another product of what it reads, which is no larger than that, added to it."""

    def __init__(self) -> None:
        super().__init__(F.gelu, bias=False)
        self.beside = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.beside(x)


class Scaled(FeedForward):
    """A gated layer whose gate is a product of two small matrices."""

    def __init__(self) -> None:
        super().__init__(F.silu, bias=False)
        self.first, self.second = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, 4 * WIDTH, bias=False)
        self.third = nn.Linear(4 * WIDTH, 2, bias=False)
        self.fourth = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.up(x)) * self.second(self.first(x))
        return self.down(hidden) + 2 * self.fourth(self.third(hidden))


def in_chunks(layer: Layer, decomposed: bool) -> fx.Graph:
    """The joint graph of a program with its layers in chunks, which gives what eager gives."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, backend = Model(layer).double(), Chunked(4, decomposed, chunk_layers)
    made, expected = beside_eager(backend, model, [torch.randn(3, 20, WIDTH, dtype=torch.float64)])
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert backend.found
    return backend.graph


def terms(node: fx.Node) -> set[fx.Node]:
    """The values that are put together of chunks of which it is a sum, by whatever views."""
    found: set[fx.Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        source = stack.pop()
        if JOINED in source.meta:
            found.add(source)
        elif source.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            stack += source.all_input_nodes
    return found


def sums(graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
    """Sums of chunks that are put together, and those that read a whole value of chunks."""
    added = [node for node in graph.nodes if node.target is _ADD]
    within = [node for node in added if is_in_chunks(node) and any(JOINED in user.meta for user in node.users)]
    return within, [node for node in added if not is_in_chunks(node) and terms(node)]


@DECOMPOSED
@pytest.mark.parametrize("layer", [lambda: FeedForward(F.silu, gated=True, bias=False), Scaled], ids=["gated", "small"])
def test_no_sum_reads_two_wholes(layer: Layer, decomposed: bool) -> None:
    within, whole = sums(in_chunks(layer, decomposed))
    # Gradients of both layers in four chunks, if not results, too.
    assert len(within) >= 8
    assert all(len(terms(node)) == 1 for node in whole)


@DECOMPOSED
@pytest.mark.parametrize("layer", [lambda: FeedForward(F.gelu), Adapted], ids=["gelu", "adapted"])
def test_what_a_layer_is_added_to_stays_whole(layer: Layer, decomposed: bool) -> None:
    _, whole = sums(in_chunks(layer, decomposed))
    assert len(whole) >= 2


@DECOMPOSED
def test_a_sum_with_what_does_not_leave_the_layer_is_none_of_it(decomposed: bool) -> None:
    within, whole = sums(in_chunks(Beside, decomposed))
    assert not within
    assert whole
