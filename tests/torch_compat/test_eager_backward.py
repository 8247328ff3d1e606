"""What the backward of eager operators takes, by its nodes, is what the allocator sees."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from remat_compiler import torch_compat

ROWS, WIDE = 64, 256
BLOCK = ROWS * WIDE * 4
HEAD = nn.Linear(WIDE, WIDE, bias=False)
CLASSES = torch.randint(0, WIDE, (ROWS,))


def in_chunks(x: torch.Tensor) -> torch.Tensor:
    parts = x.chunk(4)
    return torch.stack([F.cross_entropy(HEAD(part), CLASSES[: len(part)]) for part in parts]).sum()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(),
    "mean of squares": lambda x: x.pow(2).mean(),
    "cross entropy": lambda x: F.cross_entropy(x, CLASSES),
    "cross entropy of a head": lambda x: F.cross_entropy(HEAD(x), CLASSES),
    "chunks": in_chunks,
    "layers": lambda x: torch.tanh(torch.exp(torch.tanh(x))).square().mean(),
    "smooth": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)),
    "views": lambda x: x.view(WIDE, ROWS).t().reshape(ROWS, WIDE).sigmoid().sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_it_is_close_to_what_is_allocated(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    HEAD.zero_grad()
    # Asked for, gradients of leaves wait as those for a compiled graph do: they are not copied.
    x = torch.randn(ROWS, WIDE, requires_grad=True)
    found = loss(x)
    foreseen = torch_compat.eager_backward([found])
    leaves = [x, HEAD.weight]
    deltas, _ = torch_compat.memory_deltas(lambda: torch.autograd.grad(found, leaves, allow_unused=True))
    measured = foreseen.saved_bytes + max(accumulate(deltas))
    assert abs(foreseen.peak_bytes - measured) <= 0.15 * measured + 1024


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_gradients_of_ragged_tensors_are_as_large_as_those_behind_them(layout: torch.layout) -> None:
    x = torch.randn(ROWS, WIDE, requires_grad=True)
    parts = [x[:5], x[5:]]
    ragged = torch.nested.as_nested_tensor(parts, layout=layout)
    loss = torch.nested.to_padded_tensor(torch.sin(ragged * 2), 0.0).square().mean()
    padded = 2 * (ROWS - 5) * WIDE * 4
    found = torch_compat.eager_backward([loss])
    assert found.saved_bytes <= found.peak_bytes <= found.saved_bytes + 4 * padded


def test_values_of_leaves_and_released_values_do_not_count() -> None:
    x = torch.randn(ROWS, WIDE, requires_grad=True)
    loss = torch.exp(HEAD(x)).sum()
    # `exp` saves its result; the product saves its two leaves, one of them as a view.
    assert torch_compat.eager_backward([loss]).saved_bytes == BLOCK
    assert torch_compat.saved_before([loss]) == BLOCK
    loss.backward()
    assert torch_compat.eager_backward([loss]).saved_bytes == torch_compat.saved_before([loss]) == 0


def test_gradients_of_leaves_stay_unless_they_are_added_to_others() -> None:
    HEAD.zero_grad()
    x, large = torch.randn(ROWS, WIDE), torch.randn(16 * ROWS, WIDE, requires_grad=True)

    def peak() -> int:
        # The head's backward comes first; its gradient is there while that of the large values runs.
        return torch_compat.eager_backward([large.exp().exp().sum() + HEAD(x).sum()]).peak_bytes

    first = peak()
    HEAD(x).sum().backward()
    assert first - peak() == WIDE * WIDE * 4
