"""Rows that nobody reads: left out before the product, so that sequences are cut anywhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chunks.chunked import Chunked, step
from chunks.programs import CLASSES, IGNORED, PROGRAMS, WIDTH, Head, Loss, Program, in_sequences, shifted

aten = torch.ops.aten
DECOMPOSED = pytest.mark.parametrize("decomposed", [False, True], ids=["interpreter", "inductor"])


def compiled_step(
    loss: Loss, shape: tuple[int, ...], backend: Chunked, last: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """What a step of a head gives in chunks, and eagerly; the last activations of each sequence are times `last`."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Head(loss).double()
    x, targets = torch.randn(*shape, WIDTH, dtype=torch.float64), torch.randint(0, CLASSES, shape)
    x[:, -1] *= last
    targets[0, 1] = IGNORED
    return step(torch.compile(model, backend=backend), model, (x, targets)), step(model, model, (x, targets))


@DECOMPOSED
@pytest.mark.parametrize(("shape", "chunks"), [((2, 12), 7), ((1, 9), 8), ((5, 2), 5)])
def test_as_many_chunks_as_asked_for(shape: tuple[int, ...], chunks: int, decomposed: bool) -> None:
    backend = Chunked(chunks, decomposed)
    made, expected = compiled_step(shifted, shape, backend)

    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    rows = shape[0] * (shape[1] - 1)
    (loss,) = backend.found
    longest = -(-rows // chunks)
    assert loss.chunks == -(-rows // longest)
    assert (loss.whole_bytes, loss.chunk_bytes) == (shape[0] * shape[1] * CLASSES * 8, longest * CLASSES * 8)


@DECOMPOSED
@pytest.mark.parametrize("name", ["shifted", "rows_shifted", "capped_and_shifted", "adapted_and_shifted"])
def test_no_operator_makes_the_rows(name: str, decomposed: bool) -> None:
    program, backend = PROGRAMS[name], Chunked(4, decomposed)
    torch._dynamo.reset()
    model = program.make().double()
    step(torch.compile(model, backend=backend), model, (torch.randn(*program.shape, WIDTH).double(), targets(program)))

    made = [node.meta["val"] for node in backend.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    rows = [value.numel() // CLASSES for value in made if CLASSES in value.shape and WIDTH not in value.shape]
    assert max(rows) <= -(-targets(program).numel() // 4)
    # Small gradients have zeros in their place.
    assert backend.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)


def targets(program: Program) -> Tensor:
    """Targets of a program."""
    return torch.arange(torch.Size(program.shape).numel()).view(program.shape)


def test_the_gradient_of_rows_that_are_left_out_is_zero() -> None:
    (_, of_x, *_), (_, expected, *_) = compiled_step(shifted, (2, 12), Chunked(4))
    assert of_x[:, :-1].abs().amin(-1).gt(0).sum() >= 20
    assert not of_x[:, -1].any()
    assert not expected[:, -1].any()


def test_numbers_in_rows_that_are_left_out_reach_nothing() -> None:
    made, expected = compiled_step(shifted, (2, 12), Chunked(4), last=torch.nan)
    usual, _ = compiled_step(shifted, (2, 12), Chunked(4))
    # In eager, the gradient of the head's weight is a sum in which they are multiplied by 0.
    assert expected[-1].isnan().all()
    torch.testing.assert_close((made[0], made[-1]), (usual[0], usual[-1]))


def test_what_is_not_shifted_stays_as_it_is() -> None:
    backend = Chunked(4)
    made, expected = compiled_step(in_sequences, (2, 12), backend)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert not backend.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
