"""What operators hold inside on a GPU that is not there, by the forms that torch's sources give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remat_compiler.costs.cuda_workspace import modelled_bytes
from remat_compiler.costs.op_call import OpCall, TensorSpec

aten: Any = torch.ops.aten


def spec(*shape: int, dtype: torch.dtype = torch.bfloat16) -> TensorSpec:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return TensorSpec(shape, tuple(reversed(strides)), dtype, "cuda")


def call(func: Any, *args: Any) -> OpCall:
    made = OpCall.any(func, args, {})
    assert made is not None
    return made


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_a_backward_of_attention_keeps_sums_in_float32(kernel: str) -> None:
    """2 x 3 heads, 100 rows in blocks of 128, heads of 40 in steps of 32; a sum of the softmax for each row."""
    backward = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    query = spec(2, 3, 100, 40)
    assert modelled_bytes(call(backward, query, query, query, query, query)) == 2 * 3 * 128 * (64 + 1) * 4


def test_grouped_heads_have_gradients_of_their_own() -> None:
    backward = aten._scaled_dot_product_flash_attention_backward.default
    query, key = spec(2, 4, 128, 64), spec(2, 1, 256, 64)
    grouped = modelled_bytes(call(backward, query, query, key, key, query))
    alone = modelled_bytes(call(backward, query, query, spec(2, 4, 256, 64), spec(2, 4, 256, 64), query))
    assert grouped is not None
    assert alone is not None
    assert grouped - alone == 2 * 2 * 4 * 256 * 64 * 2


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        (torch.float32, 64, 2 * 3 * 100 * 4 + 2 * 3 * 100 * 64 * 4),
        (torch.bfloat16, 40, 2 * 3 * 100 * 4 + 2 * 3 * 128 * 64 * 4),
        (torch.bfloat16, 160, 2 * 3 * 100 * 4 + 2 * 3 * 128 * 192 * 4 * 3),
    ],
)
def test_efficient_attention_by_type_and_width(dtype: torch.dtype, width: int, expected: int) -> None:
    query = spec(2, 3, 100, width, dtype=dtype)
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    assert modelled_bytes(call(backward, query, query, query, query, None, query)) == expected


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.mm.default, (spec(4, 8), spec(8, 4))),
        (aten.mul.Tensor, (spec(4), spec(4, dtype=torch.float32))),
        (aten._foreach_sqrt.default, ([spec(4), spec(8)],)),
        (aten._fused_adamw_.default, ([spec(4)], [spec(4)], [spec(4)], [spec(4)], [], [spec()])),
        (aten.copy_.default, (spec(4), spec(4, dtype=torch.float32))),
        (aten._scaled_dot_product_flash_attention.default, (spec(1, 1, 8, 8),) * 3),
    ],
)
def test_what_holds_nothing(func: Any, args: tuple[Any, ...]) -> None:
    assert modelled_bytes(call(func, *args)) == 0


def test_logsumexp_holds_powers_and_the_largest_of_each_row() -> None:
    values = spec(6, 8, dtype=torch.float32)
    assert modelled_bytes(call(aten.logsumexp.default, values, [1])) == (6 * 8 + 6) * 4
    assert modelled_bytes(call(aten.logsumexp.default, values, [0, -1])) == (6 * 8 + 1) * 4


def test_what_no_source_tells_is_unknown() -> None:
    image, weight = spec(1, 3, 8, 8), spec(4, 3, 3, 3)
    options = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert modelled_bytes(call(aten.convolution.default, image, weight, None, *options)) is None


def test_a_state_that_is_saved_or_set_does_not_hide_the_operator() -> None:
    operators = torch._prims.rng_prims
    query = spec(2, 3, 100, 40)
    backward = aten._scaled_dot_product_flash_attention_backward.default
    plain = call(backward, query, query, query, query, query)
    saved = call(operators.run_and_save_rng_state, backward, *plain.args)
    state = TensorSpec((16,), (1,), torch.uint8, "cpu")
    replayed = call(operators.run_with_rng_state, state, backward, *plain.args)
    assert {modelled_bytes(one) for one in (plain, saved, replayed)} == {modelled_bytes(plain)}
    assert {one.device_type for one in (plain, saved, replayed)} == {"cuda"}


@pytest.mark.parametrize(("indices", "parts"), [((3, 1024), 0), ((4, 1024), 4096 + 409)])
def test_a_gradient_of_a_table_has_its_rows_in_float32(indices: tuple[int, ...], parts: int) -> None:
    """Once for each index, and once more for each ten; of few indices nothing."""
    places = spec(*indices, dtype=torch.int64)
    found = modelled_bytes(call(aten.embedding_dense_backward.default, spec(*indices, 96), places, 50_000, -1, False))
    assert found == (parts * 96 * 4 + 7 * places.num_bytes if parts else 0)
