"""Each rule of images against the operator itself, see `test_rules`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chunks.test_rules import Call, assert_same, called, indices, numbers, part, traced
from remat_compiler.chunks.cut import Cut, even_bounds
from remat_compiler.chunks.images import IMAGES
from remat_compiler.chunks.rules import cutting

aten = torch.ops.aten
CONVOLUTION = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)
TRANSPOSED = ([2, 2], [1, 1], [1, 1], True, [1, 1], 1)
IN_TWO_GROUPS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
POOL = ([2, 2], [2, 2], [0, 0], [1, 1], False)
MEAN_POOL = ([2, 2], [2, 2], [0, 0], False, True, None)


def images(*shape: int) -> Tensor:
    return numbers(5, *shape)


def group_norm(backward: bool, *wanted: bool) -> Call:
    x, weight, bias = images(4, 3, 3), numbers(4), numbers(4)
    if not backward:
        return Call(aten.native_group_norm.default, (x, weight, bias, 5, 4, 9, 2, 1e-5), 2)
    _, mean, scale = aten.native_group_norm.default(x, weight, bias, 5, 4, 9, 2, 1e-5)
    return Call(
        aten.native_group_norm_backward.default,
        (images(4, 3, 3), x, mean, scale, weight, 5, 4, 9, 2, list(wanted)),
        5,
    )


def batch_norm_backward(train: bool) -> Call:
    statistics = [numbers(4), numbers(4).abs()] * 2
    args = (images(4, 3, 3), images(4, 3, 3), numbers(4), *statistics, train, 1e-5, [True, True, True])
    return Call(aten.native_batch_norm_backward.default, args, 0 if train else 3)


def largest(wanted: bool) -> Call:
    x = images(2, 4, 4)
    if not wanted:
        return Call(aten.max_pool2d_with_indices.default, (x, *POOL), 2)
    return Call(aten.max_pool2d_with_indices_backward.default, (images(2, 2, 2), x, *POOL, indices(4, 5, 2, 2, 2)), 4)


CALLS: dict[str, Call] = {
    "convolution": Call(aten.convolution.default, (images(3, 6, 6), numbers(4, 3, 3, 3), numbers(4), *CONVOLUTION), 2),
    "of_a_line": Call(
        aten.convolution.default, (images(3, 6), numbers(4, 3, 3), None, [1], [1], [1], False, [0], 1), 2
    ),
    "transposed": Call(aten.convolution.default, (images(3, 4, 4), numbers(3, 2, 3, 3), None, *TRANSPOSED), 2),
    "in_groups": Call(aten.convolution.default, (images(4, 6, 6), numbers(4, 2, 3, 3), None, *IN_TWO_GROUPS), 2),
    "convolution_backward": Call(
        aten.convolution_backward.default,
        (images(4, 3, 3), images(3, 6, 6), numbers(4, 3, 3, 3), [4], *CONVOLUTION, [True, True, True]),
        3,
    ),
    "transposed_backward": Call(
        aten.convolution_backward.default,
        (images(2, 8, 8), images(3, 4, 4), numbers(3, 2, 3, 3), None, *TRANSPOSED, [True, True, False]),
        3,
    ),
    "group_norm": group_norm(False),
    "group_norm_backward": group_norm(True, True, True, True),
    "group_norm_backward_of_weights": group_norm(True, False, True, True),
    "batch_norm": Call(
        aten._native_batch_norm_legit_no_training.default,
        (images(4, 3, 3), numbers(4), numbers(4), numbers(4), numbers(4).abs(), 0.1, 1e-5),
        2,
    ),
    "batch_norm_backward": batch_norm_backward(False),
    "batch_norm_backward_in_training": batch_norm_backward(True),
    "largest": largest(False),
    "largest_backward": largest(True),
    "mean": Call(aten.avg_pool2d.default, (images(2, 4, 4), *MEAN_POOL), 2),
    "mean_backward": Call(aten.avg_pool2d_backward.default, (images(2, 2, 2), images(2, 4, 4), *MEAN_POOL), 3),
    "adaptive_mean": Call(aten._adaptive_avg_pool2d.default, (images(2, 5, 5), [2, 2]), 2),
    "adaptive_mean_backward": Call(
        aten._adaptive_avg_pool2d_backward.default, (images(2, 2, 2), images(2, 5, 5)), 3
    ),
    "enlarged": Call(aten.upsample_bicubic2d.default, (images(2, 3, 3), [6, 6], False), 2),
    "enlarged_backward": Call(
        aten.upsample_bicubic2d_backward.default, (images(2, 6, 6), [6, 6], [5, 2, 3, 3], False), 2
    ),
    "smoothly_enlarged": Call(aten._upsample_bilinear2d_aa.default, (images(2, 3, 3), [6, 6], False), 2),
    "smoothly_enlarged_backward": Call(
        aten._upsample_bilinear2d_aa_backward.default, (images(2, 6, 6), [6, 6], [5, 2, 3, 3], False), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_chunks_of_images_give_what_the_whole_gives(name: str) -> None:
    call = CALLS[name]
    node, values = traced(call)
    assert call.target in IMAGES
    cut, found = Cut(0, 0, even_bounds(5, 2)), 0
    for operand in (None, *(i for i, value in enumerate(values) if value.shape[0] == 5)):
        if cutting(node, operand, cut) is not None:
            assert_same(node, values, operand, cut)
            found += 1
    assert found == call.cuts
    # Weights have no chunks, and neither have channels.
    others = [i for i, value in enumerate(values) if value.shape[0] != 5]
    assert not any(cutting(node, i, Cut(0, 0, (0, 1, int(values[i].shape[0])))) for i in others)
    assert cutting(node, None, Cut(1, 1, (0, 1, 2))) is None


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("batch_norm_backward")])
def test_chunks_may_have_no_images(name: str) -> None:
    node, values = traced(CALLS[name])
    how = cutting(node, None, Cut(0, 0, (0, 0, 5)))
    assert how is not None
    made = called(node, [part(value, cut, 0) for value, cut in zip(values, how.operands)], how.changes[0])
    for one, placed in zip(made, how.results):
        assert one is None or not (one.numel() if isinstance(placed, Cut) else one.count_nonzero())
