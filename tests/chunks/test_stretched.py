"""Layers that make far more than they read without a product, in chunks: of images, and of what is stretched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chunks.chunked import Chunked, beside_eager, step
from chunks.stretched_programs import PROGRAMS, Classified, Stem, Stretched
from chunks.test_losses import DECOMPOSED, largest
from remat_compiler.chunks.layers import chunk_layers

CHUNKS = 3


def made_for(program: Stretched) -> tuple[nn.Module, list[Tensor]]:
    """The program and what it is given, by fixed random numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return program.make().double(), [torch.randn(*shape, dtype=torch.float64) for shape in program.shapes]


@DECOMPOSED
@pytest.mark.parametrize("name", PROGRAMS)
def test_layers_in_chunks_are_the_same(name: str, decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    made, expected = beside_eager(backend, *made_for(PROGRAMS[name]))
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert backend.found
    assert {(one.what, one.chunks) for one in backend.found} == {("layer", CHUNKS)}
    assert largest(backend) < backend.found[0].whole_bytes


@pytest.mark.filterwarnings("ignore:var_mean")  # of a chunk without images
@DECOMPOSED
@pytest.mark.parametrize("name", ["splines", "additive", "groups", "nearest"])
def test_layers_in_chunks_are_the_same_for_all_batches(name: str, decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    model, _ = made_for(PROGRAMS[name])
    compiled = torch.compile(model, backend=backend)
    for batch in (6, 5, 2, 11, 7):
        given = [torch.randn(batch, *shape[1:], dtype=torch.float64) for shape in PROGRAMS[name].shapes]
        made, expected = step(compiled, model, given), step(model, model, given)
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    # Of the first batch, and of any.
    assert len(backend.made) == 2
    assert all(backend.made)


def test_a_kernel_that_needs_images_is_given_all_if_their_number_changes() -> None:
    backend = Chunked(CHUNKS, cut=chunk_layers)
    model, given = made_for(PROGRAMS["frozen"])
    compiled = torch.compile(model, backend=backend)
    for batch in (6, 5, 2):
        images = [one[:batch] for one in given]
        torch.testing.assert_close(step(compiled, model, images), step(model, model, images), rtol=1e-12, atol=1e-12)
    assert [bool(found) for found in backend.made] == [True, False]


@DECOMPOSED
def test_statistics_of_a_batch_keep_images_together(decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed, chunk_layers)
    training = Stretched(lambda: Stem(nn.BatchNorm2d, torch.tanh), ((6, 3, 8, 8),))
    made, expected = beside_eager(backend, *made_for(training))
    torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-12)
    assert backend.made == [()]


@DECOMPOSED
def test_a_loss_behind_a_convolution_is_cut_by_images(decomposed: bool) -> None:
    backend = Chunked(CHUNKS, decomposed)
    made, expected = beside_eager(backend, *made_for(Stretched(Classified, ((6, 4, 5, 5),))))
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert [(one.what, one.chunks) for one in backend.found] == [("loss", CHUNKS)]
    assert largest(backend) < backend.found[0].whole_bytes
