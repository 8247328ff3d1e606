"""Products whose rows end between multiples of 16 bytes, made products of whole multiples, in the joint graph.

On a GPU's tensor cores a product with an odd vocabulary takes five times as long as one with a few words more:

    mm(a, w)                               a: (m, k), w: (k, n), n odd
    w' = constant_pad_nd(w)   mm(a, w')[:, :n]

Zeros are written where an operand is computed, in the loop that computes it, and other readers read a view of the
result; so nothing is held twice.  An operand that lies in memory already, a parameter or the result of a kernel, would
have to be copied, which is done only if the layout may take copies.  As operators of the joint graph, padded values are
counted, and a plan may compute them again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, node_class
from remat_compiler.torch_compat import Product

_aten = torch.ops.aten
_SLICE, _PERMUTE = _aten.slice.Tensor, _aten.permute.default
_LEAST_FLOPS = 1 << 31
"""Smaller products take no longer than the launch of what pads them."""
_FLOPS_PER_BYTE = 100
"""Arithmetic saved above which bytes are copied for it: a GPU computes 100 to 300 in the time of one byte."""
_ORIGIN = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag", "recompute", "ac_graph_id")


@dataclass(frozen=True, slots=True)
class _Operand:
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
class _Padded:
    """A product to be padded: its operands, and the names of the extents that are padded."""

    product: Product
    operands: tuple[_Operand, _Operand]
    names: set[str]


def pad_products(
    joint: fx.GraphModule, *, copies: bool, wanted: Callable[[Product], bool] = lambda one: one.on_tensor_cores
) -> None:
    """Pad the products of a joint graph that are faster so.

    Args:
        joint: Joint graph, prepared; changed in place.
        copies: Whether values that lie in memory may be copied for it.
        wanted: Which products are worth a look.
    """
    found = [one for one in map(_padded, filter(wanted, torch_compat.products(joint.graph))) if one is not None]
    while True:
        extents = _common(found)
        kept = [one for one in found if _is_worth(one, extents, copies)]
        if len(kept) == len(found):
            break
        # Padded extents that only a product had which is left alone are no longer shared.
        found = [one for one in map(_padded, (one.product for one in kept)) if one is not None]
    if not found:
        return
    # Asked before anything changes: afterwards the operands have other readers.
    clones = {one.product.node for one in found if _lies_apart(one)}
    made = _write_bases(extents, found)
    moved = {node for one in found for node in _replaced(one, made, one.product.node in clones)}
    joint.graph.eliminate_dead_code()
    torch_compat.propagate_strides(joint.graph, moved)
    joint.recompile()


def _padded(product: Product) -> _Padded | None:
    """The product with the extents of rows that end between multiples, if there are any."""
    extents = product.extents
    names = {name for name in product.rows if _is_padded(extents[name], product.step)}
    if not names:
        return None
    first, second = (_operand(node, names_) for node, names_ in zip(product.operands, product.names))
    return _Padded(product, (first, second), names)


def _is_padded(size: int | torch.SymInt, step: int) -> bool:
    return isinstance(size, int) and size >= step and size % step != 0


def _operand(node: fx.Node, names: tuple[str, ...]) -> _Operand:
    """The operand, seen through the permutations between it and what computes it."""
    order = tuple(range(len(names)))
    # Batches stay in front, so that no extent is padded that stands for batches elsewhere.
    while node.target is _PERMUTE and (len(names) == 2 or node.args[1][0] == 0):  # type: ignore[index]
        through: Any = node.args[1]
        order = tuple(through[i] % len(through) for i in order)
        node = node.args[0]  # type: ignore[assignment]
    return _Operand(node, order, names)


def _common(found: list[_Padded]) -> dict[fx.Node, set[int]]:
    """The padded dimensions of each base, where products that share one pad the same; names are added to `found`."""
    extents: dict[fx.Node, set[int]] = {}
    changed = True
    while changed:
        changed = False
        for one in found:
            for operand in one.operands:
                dims = extents.setdefault(operand.base, set())
                for dim, name in zip(operand.order, operand.names):
                    if (name in one.names) != (dim in dims):
                        one.names.add(name)
                        dims.add(dim)
                        changed = True
    return {base: dims for base, dims in extents.items() if dims}


def _is_worth(one: _Padded, extents: Mapping[fx.Node, set[int]], copies: bool) -> bool:
    """Whether the product is large enough, and what has to be copied for it is little beside it, or nothing."""
    sizes = {name: torch_compat.size_hint(size) for name, size in one.product.extents.items()}
    flops = 2
    for size in sizes.values():
        flops *= size
    if flops < _LEAST_FLOPS:
        return False
    bases = {operand.base for operand in one.operands if operand.base in extents}
    values = [base.meta["val"] for base in bases if not _is_written_in_place(base)]
    values += [one.product.node.meta["val"]] if _lies_apart(one) else []
    copied = sum(2 * torch_compat.size_hint(value.numel()) * value.element_size() for value in values)
    saved = (one.product.slowdown() - 1) * flops
    return (copies or not copied) and saved >= _FLOPS_PER_BYTE * copied


def _is_written_in_place(base: fx.Node) -> bool:
    """Whether a loop computes the base, which can write it padded, and nobody needs it otherwise."""
    if any(user.op == "output" for user in base.users):
        return False
    value = base
    while node_class(value) is NodeClass.VIEW:
        value = value.all_input_nodes[0]
        # Other readers would have it written a second time.
        if len(value.users) > 1:
            return False
    return node_class(value) is NodeClass.POINTWISE


def _lies_apart(one: _Padded) -> bool:
    """Whether the result is returned, or read through a view that rows with gaps between them do not have."""
    if "n" not in one.names:
        return False
    value = one.product.node.meta["val"]
    size = value.shape[-1]
    with value.fake_mode, torch.no_grad():
        wide = value.new_empty((*value.shape[:-1], size + one.product.step))[..., :size]
    stack = [(one.product.node, wide)]
    while stack:
        node, value = stack.pop()
        for user in node.users:
            if user.op == "output":
                return True
            if node_class(user) is not NodeClass.VIEW:
                continue
            try:
                with value.fake_mode, torch.no_grad():
                    stack.append((user, user.target(value, *user.args[1:], **user.kwargs)))  # type: ignore[operator]
            except (RuntimeError, TypeError):
                return True
    return False


def _write_bases(extents: Mapping[fx.Node, set[int]], found: Iterable[_Padded]) -> dict[fx.Node, fx.Node]:
    """Each base, padded."""
    readers: dict[fx.Node, fx.Node] = {}
    for one in found:
        for operand in one.operands:
            readers.setdefault(operand.base, one.product.node)
    made = {}
    for base, dims in extents.items():
        step = torch_compat.ROW_BYTES // base.meta["val"].element_size()
        in_place = _is_written_in_place(base)
        with base.graph.inserting_before(base.next if in_place else readers[base]):
            wide = _called(
                torch_compat.PAD, base, _amounts(base.meta["val"].shape, dims, step), like=base, name="padded"
            )
            torch_compat.mark_padded_in_loop(wide)
            for key in _ORIGIN:
                if key not in wide.meta and key in readers[base].meta and base.op != "call_function":
                    wide.meta[key] = readers[base].meta[key]
            if in_place:
                narrow = _narrowed(wide, dims, base.meta["val"].shape)
                base.replace_all_uses_with(narrow, delete_user_cb=partial(operator.is_not, wide))
        made[base] = wide
    return made


def _replaced(one: _Padded, made: Mapping[fx.Node, fx.Node], is_cloned: bool) -> list[fx.Node]:
    """Put the padded product in the place of the product; the nodes that lie in memory otherwise than before."""
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
    return [result]


def _padded_bias(value: Any, one: _Padded, sizes: Mapping[str, Any]) -> Any:
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
    return _called(_PERMUTE, node, list(order), like=reader, name="padded_permuted")


def _called(target: Any, *args: Any, like: fx.Node, name: str, **kwargs: Any) -> fx.Node:
    """A new node, of the same origin in the user's program as another."""
    made = like.graph.create_node("call_function", target, args, kwargs, name)
    origin = {key: like.meta[key] for key in _ORIGIN if key in like.meta}
    made.meta |= (like.meta if target is like.target else origin) | {
        "val": torch_compat.computed(target, *args, **kwargs)
    }
    return made
