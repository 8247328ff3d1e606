"""Operators of our own that return their argument: ``remat::store``, which Inductor writes to memory at that place, and
``remat::lay_out``, which lies in memory as the graph says, while Inductor chooses a layout of its own for others.

Inductor's nearest operators also fix the layout of the value in memory; under a layout that Inductor chose for
convolutions that costs a copy of nearly every activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor import ir
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V

from remat_compiler.torch_compat.sizes import size_hint

_LIBRARY = torch.library.Library("remat", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("store(Tensor value) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("store", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

_LIBRARY.define("lay_out(Tensor value) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("lay_out", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

STORE = torch.ops.remat.store
LAY_OUT = torch.ops.remat.lay_out


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


def materialise(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """Target and arguments of a node that makes Inductor write the value of `node` to memory at that place.

    Otherwise Inductor would inline the computation into its readers.  No target if Inductor writes the value anyway.
    """
    if size_hint(node.meta["val"].numel()) == 1:
        return None, ()
    return STORE.default, (node,)
