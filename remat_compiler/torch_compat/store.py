"""Operators of our own: ``remat::store``, a value that Inductor writes to memory at that place; ``remat::lay_out``, one
that lies in memory as the graph says, while Inductor chooses a layout of its own for others; ``remat::put_in_order``,
one whose dimensions lie in the named order, the outermost first; and ``remat::pad_ends``, zeros after the last
elements, written in the loop that computes the value.

Inductor's nearest operators also fix the layout of the value in memory; under a layout that Inductor chose for
convolutions that costs a copy of nearly every activation.  And Inductor pads in a loop of its own, beside the value.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import fx
from torch._inductor import ir
from torch._inductor.lowering import lowerings, make_fallback, register_lowering
from torch._inductor.virtualized import V, ops

from remat_compiler.torch_compat.sizes import size_hint

_LIBRARY = torch.library.Library("remat", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("store(Tensor value) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("store", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

_LIBRARY.define("lay_out(Tensor value) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("lay_out", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

_LIBRARY.define("put_in_order(Tensor value, int[] dims) -> Tensor")  # type: ignore[no-untyped-call]


def _put_in_order(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    copy = value.permute(dims).clone(memory_format=torch.contiguous_format)
    return copy.permute([dims.index(dim) for dim in range(value.dim())])


_LIBRARY.impl("put_in_order", _put_in_order, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

_LIBRARY.define("pad_ends(Tensor value, SymInt[] pad) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("pad_ends", torch.constant_pad_nd, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

TABLE_GRADIENT = torch.ops.aten.embedding_dense_backward.default
"""Gradient of a table: Inductor writes it as loops, and has no way to call torch's kernel unless it is told to."""
if TABLE_GRADIENT not in lowerings:
    make_fallback(TABLE_GRADIENT, warn=False, override_decomp=True)  # type: ignore[no-untyped-call]

STORE = torch.ops.remat.store
LAY_OUT = torch.ops.remat.lay_out
PUT_IN_ORDER = torch.ops.remat.put_in_order
PAD = torch.ops.aten.constant_pad_nd.default
_PAD_ENDS = torch.ops.remat.pad_ends.default
_IN_LOOP = "remat_padded_in_loop"


@register_lowering(STORE, type_promotion_kind=None)
def _lowered(value: Any) -> Any:
    """The value itself, in memory that is its own."""
    # Inductor drops copies that it does not need itself.  Then the memory belongs to others as well, such as a second
    # output, which the user may change in place.
    shared = len(V.graph.current_node.all_input_nodes[0].users) > 1
    if shared or isinstance(value.data, ir.BaseView) or isinstance(value.data.data, ir.InputBuffer):
        value = lowerings[torch.ops.aten.clone.default](value)
    value.realize()
    return value


@register_lowering(LAY_OUT, type_promotion_kind=None)
def _laid_out(value: Any) -> Any:
    """The value itself if it has its strides in the graph, or can still get them; else a copy that has them."""
    value.realize()
    return ir.ExternKernel.require_exact_strides(value, V.graph.current_node.meta["val"].stride())


@register_lowering(PUT_IN_ORDER, type_promotion_kind=None)
def _ordered(value: Any, dims: Any) -> Any:
    """The value itself if its dimensions lie in that order, or can still do so; else a copy."""
    value.realize()
    return ir.ExternKernel.require_stride_order(value, [len(dims) - 1 - dims.index(dim) for dim in range(len(dims))])


@register_lowering(_PAD_ENDS, type_promotion_kind=None)
def _padded(value: Any, pad: Any) -> Any:
    """One loop over the padded value, which reads or computes the value where it is."""
    loader, sizes, wide = _loader(value), value.get_size(), list(value.get_size())
    padded = [dim for dim in range(len(sizes)) if pad_after(pad, len(sizes), dim)]
    for dim in padded:
        wide[dim] = wide[dim] + pad_after(pad, len(sizes), dim)

    def element(index: Any) -> Any:
        inside = [
            ops.lt(ops.index_expr(index[dim], torch.int64), ops.index_expr(sizes[dim], torch.int64)) for dim in padded
        ]
        return ops.masked(reduce(ops.and_, inside), lambda: loader(index), 0.0)

    return ir.Pointwise.create(device=value.get_device(), dtype=value.get_dtype(), inner_fn=element, ranges=wide)


def _loader(value: Any) -> Any:
    """What computes an element of the value, though Inductor writes long loops to memory for their readers."""
    written = value.data.data if isinstance(value.data, ir.StorageBox) else None
    if isinstance(written, ir.ComputedBuffer) and isinstance(written.data, ir.Pointwise):
        return written.data.make_loader()
    return value.make_loader()


def pad_after(pad: Any, dimensions: int, dim: int) -> int:
    """What an argument of ``constant_pad_nd`` adds at the end of a dimension."""
    place = 2 * (dimensions - 1 - dim) + 1
    return int(pad[place]) if place < len(pad) else 0


def mark_padded_in_loop(node: fx.Node) -> None:
    """Mark a ``constant_pad_nd`` that only adds zeros at ends, to be computed with what it pads."""
    node.meta[_IN_LOOP] = True


def is_padded_in_loop(node: fx.Node) -> bool:
    """Whether the node is so marked."""
    return _IN_LOOP in node.meta


def pad_in_loops(gm: fx.GraphModule) -> bool:
    """Have Inductor compute what is so marked in a graph in one loop with what it pads; whether there is any."""
    found = [node for node in gm.graph.find_nodes(op="call_function", target=PAD) if is_padded_in_loop(node)]
    for node in found:
        node.target = _PAD_ENDS
    gm.recompile()
    return bool(found)


def materialise(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """Target and arguments of a node that makes Inductor write the value of `node` to memory at that place.

    Otherwise Inductor would inline the computation into its readers.  No target if Inductor writes the value anyway.
    """
    if size_hint(node.meta["val"].numel()) == 1:
        return None, ()
    return STORE.default, (node,)
