"""Layers in chunks give what eager gives, and hold a chunk of their large values."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chunks.chunked import Chunked, beside_eager, step
from chunks.layer_programs import LAYERS, WIDTH, FeedForward, Grouped, Layers, Model, Returned, Turned
from chunks.test_losses import DECOMPOSED, error, largest
from remat_compiler.chunks.attention import ATTENTION
from remat_compiler.chunks.layers import chunk_layers

CHUNKS = 4
BY_ONE_OPERATOR = ("fused", "unbound", "grouped", "stretched", "masked", "masked_by_head")
"""Programs that are not cut around a product."""


def run(program: Layers, backend: Chunked, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    """What a step gives in chunks, and what it gives eagerly."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = program.make().to(dtype), [torch.randn(*program.shape, WIDTH, dtype=dtype)]
    return beside_eager(backend, model, given)


@DECOMPOSED
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_chunks_are_the_same(name: str, decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    made, expected = run(LAYERS[name], backend)

    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    found = backend.found
    # Six heads are three times two.
    what = "attention" if name in BY_ONE_OPERATOR else "layer"
    assert {(one.what, one.chunks) for one in found} <= {(what, CHUNKS), (what, CHUNKS - 1)}
    # Both layers are cut: as one, or as two where their sources differ.
    assert sum(one.count for one in found) >= 2
    # What leaves attention by one operator is as large as its result.
    kernels = [node for node in backend.graph.nodes if node.target in ATTENTION]
    assert len(kernels) == (sum(one.count * one.chunks for one in found) if name in BY_ONE_OPERATOR else 0)
    assert kernels or largest(backend) < found[0].whole_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["gelu", "gated", "causal"])
def test_rounding_is_no_worse_than_that_of_the_whole(name: str, dtype: torch.dtype) -> None:
    backend = Chunked(CHUNKS, cut=chunk_layers)
    made, whole = run(LAYERS[name], backend, dtype)
    torch.manual_seed(0)
    model = LAYERS[name].make().to(dtype)
    given = torch.randn(*LAYERS[name].shape, WIDTH, dtype=dtype)
    exact = step(model.double(), model, [given.double()])
    for one, other, right in zip(made, whole, exact):
        assert error(one, right) <= 2 * error(other, right) + torch.finfo(dtype).eps


def test_random_numbers_are_drawn_as_before() -> None:
    backend = Chunked(CHUNKS, cut=chunk_layers)
    made, expected = run(Layers(lambda: Model(lambda: FeedForward(F.gelu, dropout=0.3))), backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)


@DECOMPOSED
def test_a_value_that_an_operator_without_a_rule_reads_stays_whole(decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    program = Layers(lambda: Model(lambda: nn.Sequential(Turned(), FeedForward(F.gelu))), (CHUNKS, 10))
    made, expected = run(program, backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    # Those of the feed-forward layers alone.
    assert [one.count for one in backend.found] == [2]


def test_what_is_returned_is_needed_whole() -> None:
    backend = Chunked(CHUNKS, cut=chunk_layers)
    made, expected = run(Layers(lambda: Returned(lambda: FeedForward(torch.tanh))), backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert backend.made == [()]


@DECOMPOSED
@pytest.mark.parametrize("name", ["gelu", "gated", "adapted", "causal", "fused", "grouped", "stretched"])
def test_layers_in_chunks_are_the_same_at_all_sizes(name: str, decomposed: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    model = LAYERS[name].make().double()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for shape in ((3, 44), (2, 2), (5, 3), (2, 17), (7, 61)):
        given = [torch.randn(*shape, WIDTH, dtype=torch.float64)]
        made, expected = step(compiled, model, given), step(model, model, given)
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert backend.found
    assert len(backend.made) == 1


def test_layers_that_are_small_beside_the_largest_stay_whole() -> None:
    class Uneven(Model):
        def forward(self, x: Tensor) -> Tensor:
            small = self.layers[1](self.norms[1](x[:, :2]))
            return self.head(x + self.layers[0](self.norms[0](x))).square().mean() + small.square().mean()

    backend = Chunked(CHUNKS, cut=chunk_layers)
    made, expected = run(Layers(lambda: Uneven(lambda: FeedForward(F.gelu)), (4, 32)), backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert [one.count for one in backend.found] == [1]


@pytest.mark.parametrize("name", ["fused", "grouped", "gelu"])
def test_layers_without_attention_by_one_operator(name: str) -> None:
    backend = Chunked(CHUNKS, cut=partial(chunk_layers, attention=False))
    made, expected = run(LAYERS[name], backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert bool(backend.found) is (name == "gelu")


def test_attention_that_draws_stays_whole() -> None:
    backend = Chunked(CHUNKS, cut=chunk_layers)
    made, expected = run(Layers(lambda: Model(lambda: Grouped(stretched=True, dropout=0.3))), backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert not backend.found
