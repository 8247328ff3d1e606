"""Losses in chunks at sizes that change: compiled once, and what eager gives at every size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chunks.chunked import Chunked, step
from chunks.programs import CLASSES, IGNORED, PROGRAMS, WHOLE, WIDTH, Program

ROWS = ((31,), (2,), (3,), (4,), (5,), (7,), (8,), (17,), (29,), (30,))
SEQUENCES = ((3, 11), (2, 2), (2, 3), (5, 2), (7, 5), (2, 17), (3, 33))
IMAGES = ((5, 8, 12), (2, 8, 8), (3, 12, 8), (9, 8, 9))


def at_sizes(program: Program, backend: Chunked) -> None:
    """Train a program at several sizes, compiled for any of them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = program.make().double()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    # A single sequence stays one, of which torch compiles nothing for several.
    lengths = {1: ROWS, 2: SEQUENCES, 3: IMAGES}[len(program.shape)]
    for shape in [(1, *shape[1:]) if program.shape[0] == 1 else shape for shape in lengths]:
        given = inputs(shape)
        made, expected = step(compiled, model, given), step(model, model, given)
        # The mean of no rows is no number.
        tolerances = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}
        torch.testing.assert_close(made, expected, **tolerances, msg=lambda text, at=shape: f"{at}: {text}")


def inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Activations, and targets of which some are ignored, but never all."""
    targets = torch.where(torch.rand(shape) < 0.2, IGNORED, torch.randint(0, CLASSES, shape))
    targets.view(-1)[-1] = 3
    return torch.randn(*shape, WIDTH, dtype=torch.float64), targets


def compilations(program: Program, decomposed: bool) -> int:
    """How many of them there are if nothing is cut."""
    whole = Chunked(1, decomposed)
    at_sizes(program, whole)
    return len(whole.made)


@pytest.mark.parametrize("decomposed", [False, True], ids=["interpreter", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loss_in_chunks_is_the_same_at_all_sizes(name: str, decomposed: bool) -> None:
    backend = Chunked(4, decomposed)
    at_sizes(PROGRAMS[name], backend)
    assert backend.found
    assert len(backend.made) == 1 or len(backend.made) == compilations(PROGRAMS[name], decomposed)


@pytest.mark.parametrize("name", WHOLE)
def test_values_that_are_needed_whole_are_left_so_at_all_sizes(name: str) -> None:
    backend = Chunked(4)
    at_sizes(WHOLE[name], backend)
    assert backend.made
    assert not any(backend.made)


@pytest.mark.parametrize("decomposed", [False, True], ids=["interpreter", "inductor"])
def test_halves_of_rows_whose_number_is_any(decomposed: bool) -> None:
    """All rows are twice as many as half of them, rounded down, but not by their expression."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    head, backend = torch.nn.Linear(WIDTH, CLASSES).double(), Chunked(4, decomposed)

    def losses(x: Tensor, targets: Tensor) -> Tensor:
        logits = head(x)
        halves = F.cross_entropy(logits.unflatten(0, (2, -1)).movedim(-1, 1), targets.unflatten(0, (2, -1)))
        return halves + F.cross_entropy(logits, targets)

    compiled = torch.compile(losses, backend=backend, dynamic=True)
    for rows in (24, 30):
        given = inputs((rows,))
        made, expected = step(compiled, head, given), step(losses, head, given)
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert backend.made
