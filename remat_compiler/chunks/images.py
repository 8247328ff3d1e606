"""How operators are cut that compute each image by itself, such as convolutions, pooling and enlarging.

    y = convolution(x, w, b)                          image i of y: image i of x, and all weights
    dx, dw, db = convolution_backward(dy, x, w)       image i of dx: image i of dy and x; parts of a sum for weights

Statistics over images, as those of a batch norm in training, make all of them depend on each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from remat_compiler.chunks.axis import Axis, argument, results_of
from remat_compiler.chunks.cut import Partial, operands

_aten = torch.ops.aten
_prims = torch.ops.prims
_SAMPLED = (
    _aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d, _aten.upsample_linear1d,
    _aten.upsample_bilinear2d, _aten.upsample_bicubic2d, _aten.upsample_trilinear3d, _aten._upsample_bilinear2d_aa,
    _aten._upsample_bicubic2d_aa,
)  # fmt: skip
_SAMPLED_BACKWARD = (
    _aten.upsample_nearest1d_backward, _aten.upsample_nearest2d_backward, _aten.upsample_nearest3d_backward,
    _aten.upsample_linear1d_backward, _aten.upsample_bilinear2d_backward, _aten.upsample_bicubic2d_backward,
    _aten.upsample_trilinear3d_backward, _aten._upsample_bilinear2d_aa_backward, _aten._upsample_bicubic2d_aa_backward,
)  # fmt: skip
_POOLED = (
    _aten.max_pool2d_with_indices, _aten.max_pool2d_with_indices_backward, _aten.max_pool3d_with_indices,
    _aten.max_pool3d_with_indices_backward, _aten.avg_pool2d, _aten.avg_pool2d_backward, _aten.avg_pool3d,
    _aten.avg_pool3d_backward, _aten._adaptive_avg_pool2d, _aten._adaptive_avg_pool2d_backward,
    _aten._adaptive_avg_pool3d, _aten._adaptive_avg_pool3d_backward, _aten.adaptive_max_pool2d,
    _aten.adaptive_max_pool2d_backward, _prims._low_memory_max_pool_with_offsets,
    _prims._low_memory_max_pool_offsets_to_indices,
)  # fmt: skip
SAMPLING = frozenset({
    _aten.convolution.default, _aten.convolution_backward.default,
    *(one.default for one in (*_SAMPLED_BACKWARD, *_POOLED)),
})  # fmt: skip
"""Operators that may make small images of large ones: convolutions, pooling, and what enlarging does to gradients."""
_ALL = 1_000  # more than any operator has
_IMAGES: dict[Any, tuple[int, int, Partial]] = {
    _aten.convolution.default: (1, 1, Partial.SUM),
    _aten.convolution_backward.default: (2, 1, Partial.SUM),
    _aten.native_group_norm.default: (1, _ALL, Partial.SUM),
    _aten.native_group_norm_backward.default: (4, 1, Partial.SUM),
    # The statistics that it gives are empty.
    _aten._native_batch_norm_legit_no_training.default: (1, 1, Partial.ANY),
    _aten.native_batch_norm_backward.default: (2, 1, Partial.SUM),
    **dict.fromkeys((one.default for one in (*_SAMPLED, *_SAMPLED_BACKWARD, *_POOLED)), (_ALL, _ALL, Partial.SUM)),
}
"""How many operands in front have a slice for each image, how many results have, and what the other results are; all
images read the other operands whole."""
INPUT_SHAPES: dict[Any, int] = {one.default: 2 for one in _SAMPLED_BACKWARD}
"""Gradients of enlarging, which are told the shape of their result, and the position of that argument."""
NEEDING_IMAGES = frozenset({_aten.native_batch_norm_backward.default})
"""Operators whose kernels do not take 0 images, which a chunk of a changing number of them may have."""
IMAGE_COUNTS: dict[Any, int] = {_aten.native_group_norm.default: 3, _aten.native_group_norm_backward.default: 5}
"""Operators that are told how many images there are, and the position of that argument."""


def _each(node: fx.Node) -> list[Axis]:
    """The images of any operator of `_IMAGES`."""
    if node.target is _aten.native_batch_norm_backward.default and argument(node, 7):
        return []
    reads, makes, others = _IMAGES[node.target]
    given = [0 if i < reads else None for i in range(len(operands(node)))]
    made = [0 if i < makes else others for i in range(len(results_of(node)))]
    return [Axis(tuple(made), tuple(given))]


IMAGES = dict.fromkeys(_IMAGES, _each)
"""The rules of this module."""
