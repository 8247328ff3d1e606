"""Put padded products in place of others, as `padding` has decided.

Zeros are written by the loop that computes an operand, and its other readers read a view of the result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, node_class
from remat_compiler.torch_compat import Product

_aten = torch.ops.aten
_SLICE, PERMUTE = _aten.slice.Tensor, _aten.permute.default
_ORIGIN = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag", "recompute", "ac_graph_id")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand as a permuted view of its base.

    Attributes:
        base: The node that is padded.
        order: For each dimension of the operand, that of the base.
        names: Names of its extents.
    """

    base: fx.Node
    order: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Padded:
    """A product to be padded: its operands, and the names of the extents that are padded."""

    product: Product
    operands: tuple[Operand, Operand]
    names: set[str]


def is_written_in_place(base: fx.Node) -> bool:
    """Whether a loop computes the base, which can write it padded, and no reader needs it otherwise."""
    if any(user.op == "output" for user in base.users):
        return False
    value = base
    while node_class(value) is NodeClass.VIEW:
        value = value.all_input_nodes[0]
        # Other readers would have it written a second time.
        if len(value.users) > 1:
            return False
    return node_class(value) is NodeClass.POINTWISE


def write_bases(extents: Mapping[fx.Node, set[int]], found: Iterable[Padded]) -> dict[fx.Node, fx.Node]:
    """Each base, padded."""
    readers: dict[fx.Node, fx.Node] = {}
    for one in found:
        for operand in one.operands:
            readers.setdefault(operand.base, one.product.node)
    made = {}
    for base, dims in extents.items():
        step = torch_compat.ROW_BYTES // base.meta["val"].element_size()
        in_place = is_written_in_place(base)
        # An input comes from nowhere in the program.
        origin = base if base.op == "call_function" else readers[base]
        with base.graph.inserting_before(base.next if in_place else readers[base]):
            wide = _called(
                torch_compat.PAD, base, _amounts(base.meta["val"].shape, dims, step), like=origin, name="padded"
            )
            torch_compat.mark_padded_in_loop(wide)
            if in_place:
                narrow = _narrowed(wide, dims, base.meta["val"].shape)
                base.replace_all_uses_with(narrow, delete_user_cb=partial(operator.is_not, wide))
        made[base] = wide
    return made


def replaced(one: Padded, made: Mapping[fx.Node, fx.Node], is_cloned: bool) -> fx.Node:
    """Put the padded product in the place of the product; what lies in memory otherwise than before."""
    old, sizes = one.product.node, one.product.extents
    with old.graph.inserting_before(old):
        operands = [
            _permuted(made[operand.base], operand.order, old) if operand.base in made else given
            for operand, given in zip(one.operands, old.args[one.product.position :])
        ]
        bias = [_padded_bias(value, one, sizes) for value in old.args[: one.product.position]]
        wide = _called(old.target, *bias, *operands, like=old, name=f"{old.name}_padded", **old.kwargs)
        shape = old.meta["val"].shape
        dims = {i for i, name in ((-2, "m"), (-1, "n")) if name in one.names}
        result = _narrowed(wide, {len(shape) + dim for dim in dims}, shape)
        if is_cloned:
            result = _called(_aten.clone.default, result, like=old, name="whole", memory_format=torch.contiguous_format)
    old.replace_all_uses_with(result)
    old.graph.erase_node(old)
    return result


def _padded_bias(value: Any, one: Padded, sizes: Mapping[str, Any]) -> Any:
    """What is added to a product, padded as the product is."""
    shape, names = value.meta["val"].shape, ("m", "n")
    padded = {
        len(shape) - 2 + i
        for i, name in enumerate(names)
        if name in one.names and len(shape) - 2 + i >= 0 and shape[len(shape) - 2 + i] == sizes[name]
    }
    if not padded:
        return value
    return _called(
        torch_compat.PAD, value, _amounts(shape, padded, one.product.step), like=one.product.node, name="padded_bias"
    )


def _amounts(shape: torch.Size, dims: set[int], step: int) -> list[int]:
    """The argument of ``constant_pad_nd``, which begins with the last dimension."""
    amounts = []
    for dim in reversed(range(min(dims), len(shape))):
        amounts += [0, -shape[dim] % step if dim in dims else 0]
    return amounts


def _narrowed(node: fx.Node, dims: set[int], shape: torch.Size) -> fx.Node:
    """A view of the first elements."""
    for dim in sorted(dims):
        node = _called(_SLICE, node, dim, 0, shape[dim], like=node, name="unpadded")
    return node


def _permuted(node: fx.Node, order: tuple[int, ...], reader: fx.Node) -> fx.Node:
    if order == tuple(range(len(order))):
        return node
    return _called(PERMUTE, node, list(order), like=reader, name="padded_permuted")


def _called(target: Any, *args: Any, like: fx.Node, name: str, **kwargs: Any) -> fx.Node:
    """A new node, of the same origin in the user's program as another."""
    made = like.graph.create_node("call_function", target, args, kwargs, name)
    origin = {key: like.meta[key] for key in _ORIGIN if key in like.meta}
    made.meta |= (like.meta if target is like.target else origin) | {
        "val": torch_compat.computed(target, *args, **kwargs)
    }
    return made
