"""An operator of our own, ``remat::store``: its argument, which Inductor writes to memory where the operator stands.

Inductor's operators that come near it also say how the value lies in memory; under a layout that Inductor chose for
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

STORE = torch.ops.remat.store


@register_lowering(STORE, type_promotion_kind=None)
def _lowered(value: Any) -> Any:
    """The value itself, in memory that is its own."""
    # A copy that the graph had may be gone, since Inductor takes copies out that it need not make for its own sake.
    # Then others hold the memory, too: a second output, say, which the user may change in place.
    shared = len(V.graph.current_node.all_input_nodes[0].users) > 1
    if shared or isinstance(value.data, ir.BaseView) or isinstance(value.data.data, ir.InputBuffer):
        value = lowerings[torch.ops.aten.clone.default](value)
    value.realize()
    return value


def stored(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """Target and arguments of a node that makes Inductor write `node` to memory where it stands.

    It would inline it into its readers otherwise.  No target where it writes it anyway.
    """
    if size_hint(node.meta["val"].numel()) == 1:
        return None, ()
    return STORE.default, (node,)
