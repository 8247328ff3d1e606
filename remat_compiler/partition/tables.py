"""Gradients of tables by torch's own kernel, if its sums take less memory than those that Inductor would write.

    Inductor    put(full((V, H)), rows, gradients) in float32 ─► in 16 bits      V*H*4 bytes beside the gradient
    torch       embedding_dense_backward(gradients, rows)                        T*H*4 bytes, of T rows that are read

An embedding reads few rows of its table, but its gradient is as large as all of it: of a model with many words, sums in
float32 are what no plan goes below.  On a CPU torch's kernel would add up in 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.chunks.axis import is_zero
from remat_compiler.chunks.means import FEW_BITS
from remat_compiler.chunks.writing import call

_aten = torch.ops.aten
_prims = torch.ops.prims
DEVICES = frozenset({"cuda"})
"""Devices on which torch's kernel adds up in 32 bits."""
_PART = 2
"""A table has so many times the rows that are read, or more; else its gradient stays as it is."""


def sum_by_kernel(joint: fx.GraphModule, devices: frozenset[str] = DEVICES) -> int:
    """Have torch's kernel add up gradients of large tables of 16 bits.

    Args:
        joint: Joint graph, decomposed by Inductor; changed in place.
        devices: Types of devices on which it does.

    Returns:
        How many gradients it adds up.
    """
    found = joint.graph.find_nodes(op="call_function", target=_aten._unsafe_masked_index_put_accumulate.default)
    tables = [given for put in found if put.meta["val"].device.type in devices and (given := _table(put))]
    for rounded, arguments in tables:
        with joint.graph.inserting_before(rounded):
            made = call(joint.graph, torch_compat.TABLE_GRADIENT, arguments, like=rounded)
        rounded.replace_all_uses_with(made)
    if tables:
        joint.graph.eliminate_dead_code()
        joint.recompile()
    return len(tables)


def _table(put: fx.Node) -> tuple[fx.Node, tuple[Any, ...]] | None:
    """The rounded gradient of a table, and the arguments of torch's kernel for it; `None` for other sums."""
    if len(put.users) != 1:
        return None
    (rounded,) = put.users
    arguments: Any = put.args
    zeros, mask, indices, values = arguments
    if any(node.target is not _prims.convert_element_type.default for node in (rounded, values)):
        return None
    gradients, dtype = values.args[0], rounded.meta["val"].dtype
    if not is_zero(zeros) or len(indices) != 1 or dtype not in FEW_BITS:
        return None
    rows, columns = put.meta["val"].shape[0], put.meta["val"].shape[1:]
    read = indices[0].meta["val"]
    padding = _padding(mask, indices[0], rows)
    if padding is None or len(columns) != 1 or gradients.meta["val"].dtype is not dtype or not isinstance(rows, int):
        return None
    if tuple(gradients.meta["val"].shape) != (*read.shape, *columns):
        return None
    if _PART * torch_compat.size_hint(read.numel()) > rows:
        return None
    return rounded, (gradients, indices[0], rows, padding, False)


def _padding(mask: fx.Node, indices: fx.Node, rows: int) -> int | None:
    """The row that gets no gradient, below 0 for none; `None` if the mask says something else of rows of a table."""
    found: dict[Any, Any] = {}
    stack = [mask]
    while stack:
        node = stack.pop()
        if node.target in (_aten.unsqueeze.default, _aten.bitwise_and.Tensor):
            stack += node.all_input_nodes
        elif node.args[:1] == (indices,) and node.target not in found:
            found[node.target] = node.args[1]
        else:
            return None
    padding = found.pop(_aten.ne.Scalar, None)
    return padding if found == {_aten.ge.Scalar: 0, _aten.lt.Scalar: rows} else None
