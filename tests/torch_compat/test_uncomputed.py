"""Tensors that were not computed have sizes, pass through casts and views, and refuse to be read in any other way."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from remat_compiler import torch_compat
from remat_compiler.errors import OutputNotComputed

LIKE = torch.zeros(1, dtype=torch.bfloat16)


def stand_in() -> torch_compat.Uncomputed:
    """One of 4 x 6."""
    return torch_compat.uncomputed((4, 6), LIKE, OutputNotComputed)


def test_casts_and_views_of_it_are_of_its_kind() -> None:
    made = stand_in().float().view(2, 12).t()
    assert isinstance(made, torch_compat.Uncomputed)
    assert (made.dtype, made.shape, made.stride()) == (torch.float32, (12, 2), (1, 12))
    assert not made.requires_grad
    assert isinstance(made.detach().cpu(), torch_compat.Uncomputed)
    assert repr(made) == "Uncomputed(torch.float32, [12, 2], device='cpu')"
    assert copy.deepcopy(made) is made


@pytest.mark.parametrize(
    "read",
    [
        lambda one: one.sum().item(),
        lambda one: bool((one > 0).all()),
        lambda one: one + torch.ones(4, 6),
        lambda one: torch.zeros(4, 6).copy_(one),
        lambda one: torch.zeros(4, 6).add_(one.float()),
        lambda one: torch.cat([torch.zeros(4, 6), one]),
        lambda one: one.argmax().item(),
        lambda one: one[one > 0],
        lambda one: one.numpy(),
        lambda one: one.tolist(),
        lambda one: one.mean().backward(),
        pickle.dumps,
    ],
)
def test_who_reads_it_is_told(read: Callable[[Tensor], object]) -> None:
    with pytest.raises(
        OutputNotComputed, match=r'a result of the compiled program \(bfloat16 \[4, 6\]\) .*outputs="all"'
    ):
        read(stand_in())


def test_a_wrong_view_of_it_has_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size 24") as raised:
        stand_in().view(5, 5)
    assert not isinstance(raised.value, OutputNotComputed)


def test_a_compiled_function_does_not_read_it_either() -> None:
    @torch.compile(backend="eager")
    def weighted(one: Tensor, weight: Tensor) -> Tensor:
        return one * weight

    with pytest.raises(Exception, match=r"was not computed|Uncomputed"):
        weighted(stand_in(), torch.ones(6)).sum().item()
