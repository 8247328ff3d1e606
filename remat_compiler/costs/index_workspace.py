"""Memory that operators with an index, a length or a mask take inside on a CPU, by closed forms.

The table of operators names a form for each operator that has one; several hold the same kinds of memory:

    indices of 32 bits, as 64        those of gather, scatter and their kind
    an index for each element and dimension of a mask
    arguments as one piece           where they are not, by `one_piece` in the table
    sums in float32                  those of 16 bits, of gather, scatter and index_add
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall, TensorSpec, tensor_specs
from remat_compiler.operators.row import NOTHING

INDEX_BYTES = 8
_SUM_BYTES = 4
_FEW_DIGITS = (torch.bfloat16, torch.float16)
_SHORT_SLICE = 16
"""Elements below which ``index_add`` adds all slices at once."""


def formed_cpu_bytes(call: OpCall) -> int | None:
    """Workspace of `call` on a CPU in bytes; `None` if no form is known."""
    facts = torch_compat.facts_of(call.func)
    if facts.cpu == NOTHING:
        return 0
    if facts.cpu:
        return FORMS[facts.cpu](call)
    specs = list(tensor_specs((call.args, call.kwargs)))
    return _copied(specs, facts.one_piece) if facts.one_piece else None


def _copied(specs: list[TensorSpec], positions: Iterable[int]) -> int:
    """Bytes of copies of those tensors that do not lie in one piece, row after row."""
    return sum(specs[i].num_bytes for i in positions if i < len(specs) and not _is_contiguous(specs[i]))


def _is_contiguous(spec: TensorSpec) -> bool:
    return spec.without_data().is_contiguous()


def _is_channels_last(spec: TensorSpec) -> bool:
    if len(spec.shape) != 4:
        return False
    # As torch suggests a layout: one that is both counts as row after row.
    made = spec.without_data()
    return made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous()


def _index_bytes(spec: TensorSpec) -> int:
    """What becomes of an argument that may be an index or a mask."""
    count = math.prod(spec.shape)
    if spec.dtype is torch.int32:
        return count * INDEX_BYTES
    return count * len(spec.shape) * INDEX_BYTES if spec.dtype in (torch.bool, torch.uint8) else 0


def _number(call: OpCall, position: int, name: str, default: Any) -> Any:
    return call.args[position] if position < len(call.args) else call.kwargs.get(name, default)


def _indices(call: OpCall) -> int:
    _, *indices = tensor_specs((call.args, call.kwargs))
    return sum(map(_index_bytes, indices))


def _with_sums(call: OpCall, count: int) -> int:
    """Indices, and so many sums where the values have few digits."""
    return _indices(call) + (count * _SUM_BYTES if call.args[0].dtype in _FEW_DIGITS else 0)


def _scattered(call: OpCall) -> int:
    return _with_sums(call, math.prod(call.args[0].shape))


def _scatter_reduced(call: OpCall) -> int | None:
    return None if "mean" in call.args else _scattered(call)


def _gathered(call: OpCall) -> int:
    """Whole rows at once, by an index that is the same for all columns, are copied as they are."""
    index: TensorSpec = call.args[2]
    same = all(size == 1 or stride == 0 for size, stride in zip(index.shape[1:], index.stride[1:]))
    rows = call.args[1] % max(len(index.shape), 1) == 0 and same
    return _with_sums(call, 0 if rows else math.prod(index.shape))


def _slices_added(call: OpCall) -> int:
    """At most: of all at once, if slices are short or not in one piece, else of two slices at a time."""
    values: TensorSpec = call.args[0]
    shape, dim = values.shape, int(call.args[1])
    if len(shape) < 2:
        return _indices(call)
    dim, count = dim % len(shape), math.prod(shape)
    part = count // max(shape[dim], 1)
    return _with_sums(call, count if dim == len(shape) - 1 or part < _SHORT_SLICE else 2 * part)


def _index_list(call: OpCall) -> int:
    """``index`` and ``index_put``: only the list of indices holds any."""
    return sum(map(_index_bytes, tensor_specs(call.args[1])))


def _selected(call: OpCall) -> int:
    """Of the second dimension, whole slices are copied at once, from values in one piece."""
    spec: TensorSpec = call.args[0]
    second = len(spec.shape) > 1 and call.args[1] % len(spec.shape) == 1
    return _copied([spec], [0]) if second else 0


def _pool_backward(call: OpCall) -> int:
    """The gradient's layout is that of the computation; a result in the input's layout is copied from there."""
    gradient, x, *_, indices = tensor_specs((call.args, call.kwargs))
    channels_last = _is_channels_last(gradient)
    in_place = _is_channels_last if channels_last else _is_contiguous
    copied = sum(spec.num_bytes for spec in (gradient, indices) if not in_place(spec))
    return copied + (x.num_bytes if _is_channels_last(x) is not channels_last else 0)


def _nll_loss(call: OpCall) -> int:
    """Only a loss that is reduced (``reduction`` 1 or 2) copies its arguments."""
    return _copied(list(tensor_specs(call.args)), range(3)) if _number(call, 3, "reduction", 1) else 0


def _masked_select(call: OpCall) -> int:
    """The mask as numbers, and their sums up to each: of a selection, and of ``masked_scatter`` backward."""
    values, mask = call.args[:2]
    elements = (max(v, m) for v, m in zip_longest(values.shape[::-1], mask.shape[::-1], fillvalue=1))
    return 2 * INDEX_BYTES * math.prod(elements)


def _ctc_backward(call: OpCall) -> int:
    """Probabilities from the end, as many as the forward's from the start."""
    *_, alpha = tensor_specs(call.args)
    return alpha.num_bytes


def _lu_solve(call: OpCall) -> int:
    """Whether each pivot is a row, and the answer for all."""
    pivots: TensorSpec = call.args[1]
    return math.prod(pivots.shape) + 12 + _copied([pivots], [0])


def _lu_unpack(call: OpCall) -> int | None:
    """A permutation of the rows for each matrix, and the one that each begins with."""
    matrices: TensorSpec = call.args[0]
    pivots: TensorSpec = call.args[1]
    *batch, rows, columns = matrices.shape
    if batch and (rows != columns or not _is_contiguous(pivots)):
        return None
    return rows * INDEX_BYTES * (math.prod(batch) + 1 if batch else 1)


def _bag(call: OpCall) -> int:
    """At most an index for each entry and for each bag, and two more."""
    indices: TensorSpec = call.args[1]
    offsets: TensorSpec = call.args[2]
    return (math.prod(indices.shape) + math.prod(offsets.shape) + 2) * INDEX_BYTES


def _bag_backward(call: OpCall) -> int | None:
    """A gradient and two indices for each entry; none is known for maxima."""
    gradient: TensorSpec = call.args[0]
    indices: TensorSpec = call.args[1]
    count = math.prod(indices.shape)
    if _number(call, 8, "mode", 0) == 2:
        return None
    row = gradient.shape[-1] * gradient.dtype.itemsize
    return count * (row + 2 * INDEX_BYTES) + INDEX_BYTES + _copied([gradient], [0])


FORMS: dict[str, Callable[[OpCall], int | None]] = {
    "indices": _indices,
    "index_list": _index_list,
    "gathered": _gathered,
    "scattered": _scattered,
    "scatter_reduced": _scatter_reduced,
    "slices_added": _slices_added,
    "selected": _selected,
    "masked_select": _masked_select,
    "all_arguments": lambda call: sum(spec.num_bytes for spec in tensor_specs(call.args)),
    "pool_backward": _pool_backward,
    "nll_loss": _nll_loss,
    "ctc_backward": _ctc_backward,
    "lu_solve": _lu_solve,
    "lu_unpack": _lu_unpack,
    "bag": _bag,
    "bag_backward": _bag_backward,
}
"""The forms by their names in the table of operators."""
