"""Memory that operators take inside on a GPU that is not there, by closed forms from torch's own sources.

    operator                       holds beside its results
    flash attention, backward      the query's gradient and the sums of the softmax in float32; if heads are grouped,
                                   gradients of keys and values for each query head (flash_api.cpp, mha_bwd)
    efficient attention, backward  likewise; for float32 the product of output and gradient (attention_backward.cu)
    cuDNN attention, backward      taken to be as flash's: cuDNN does not say
    gradient of a table            its rows in float32, once for each index (EmbeddingBackwardKernel.cu); of few indices
                                   nothing (Embedding.cu)
    logsumexp                      the largest along each row, and powers of the differences (ReduceOps.cpp)

The table of operators names those that hold nothing.  Pointwise operators convert on the way and hold nothing.  What
has no form, such as a convolution, stays unknown, and is named in the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall, TensorSpec
from remat_compiler.operators.row import NOTHING
from remat_compiler.units import rounded_up

Arguments = tuple[Any, ...]
_FLOAT32_BYTES = 4
_ROWS = 128
"""Rows of queries are rounded up to whole blocks of these."""

_FEW_INDICES = 3072
"""Up to so many, each block of the kernel looks through all indices."""
_INDEX_ARRAYS = 7
"""The indices sorted, their places, and where rows of the table begin and end in them, each as large as the indices."""


def modelled_bytes(call: OpCall) -> int | None:
    """Workspace of `call` on a CUDA device in bytes; `None` if no form is known."""
    func, args = call.executed.func, call.executed.args
    if not isinstance(func, OpOverload):
        return None
    form = torch_compat.facts_of(func).cuda
    if form == NOTHING or torch.Tag.pointwise in func.tags:
        return 0
    return FORMS[form](args) if form else None


def _flash_backward(args: Arguments) -> int:
    query, key = _operands(args)
    batch, heads, rows, width = query.shape
    padded = rounded_up(rows, _ROWS)
    sums = batch * heads * padded * (rounded_up(width, 32) + 1) * _FLOAT32_BYTES
    expanded = 2 * batch * heads * key.shape[2] * width * query.dtype.itemsize if key.shape[1] != heads else 0
    return sums + expanded


def _efficient_backward(args: Arguments) -> int:
    query, key = _operands(args)
    batch, heads, rows, width = query.shape
    softmax = batch * heads * rows * _FLOAT32_BYTES
    if query.dtype == torch.float32:
        # Gradients are summed in place; the product of output and gradient is a tensor of its own.
        return softmax + query.num_bytes
    sums = rounded_up(rows, _ROWS) * rounded_up(width, 64)
    # Wide heads do not fit into registers: gradients of keys and values are summed in memory, too.
    if width > 128:
        sums += 2 * rounded_up(key.shape[2], _ROWS) * rounded_up(width, 64)
    return softmax + batch * heads * sums * _FLOAT32_BYTES


def _operands(args: Arguments) -> tuple[TensorSpec, TensorSpec]:
    """Query and key of a backward; the gradient stands in front of them."""
    return args[1], args[2]


def _logsumexp(args: Arguments) -> int:
    """Within a compiled graph it is decomposed; this is of a loss outside of one."""
    values: TensorSpec = args[0]
    axes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    rows = values.num_bytes // math.prod(values.shape[axis] for axis in axes)
    return values.num_bytes + rows


def _table_gradient(args: Arguments) -> int:
    gradients: TensorSpec = args[0]
    indices: TensorSpec = args[1]
    count = math.prod(indices.shape)
    if count <= _FEW_INDICES:
        return 0
    # Sums of ten rows each, of which the last one of a row of the table may have fewer.
    parts = count + count // 10
    return parts * gradients.shape[-1] * _FLOAT32_BYTES + _INDEX_ARRAYS * indices.num_bytes


FORMS: dict[str, Callable[[Arguments], int]] = {
    "logsumexp": _logsumexp,
    "table_gradient": _table_gradient,
    # As measured on an H100.
    "cudnn_attention": lambda _: 512,
    "flash_backward": _flash_backward,
    "efficient_backward": _efficient_backward,
}
"""The forms by their names in the table of operators, for the arguments of a call."""
