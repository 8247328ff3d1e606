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

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, node_class
from remat_compiler.capture.padded_products import PERMUTE, Operand, Padded, is_written_in_place, replaced, write_bases
from remat_compiler.torch_compat import Product

_LEAST_FLOPS = 1 << 31
"""Smaller products take no longer than the launch of what pads them."""
_FLOPS_PER_BYTE = 100
"""Arithmetic saved above which bytes are copied for it: a GPU computes 100 to 300 in the time of one byte."""


def pad_products(joint: fx.GraphModule, *, copies: bool) -> None:
    """Pad the products of a joint graph that are faster so.

    Args:
        joint: Joint graph, prepared; changed in place.
        copies: Whether values that lie in memory may be copied for it.
    """
    computed_so = (one for one in torch_compat.products(joint.graph) if one.on_tensor_cores)
    found = [one for one in map(_padded, computed_so) if one is not None]
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
    made = write_bases(extents, found)
    moved = {replaced(one, made, one.product.node in clones) for one in found}
    joint.graph.eliminate_dead_code()
    torch_compat.propagate_strides(joint.graph, moved)
    joint.recompile()


def _padded(product: Product) -> Padded | None:
    """The product with the extents of rows that end between multiples, if there are any."""
    extents = product.extents
    names = {name for name in product.rows if _is_padded(extents[name], product.step)}
    if not names:
        return None
    first, second = (_operand(node, names_) for node, names_ in zip(product.operands, product.names))
    return Padded(product, (first, second), names)


def _is_padded(size: int | torch.SymInt, step: int) -> bool:
    return isinstance(size, int) and size >= step and size % step != 0


def _operand(node: fx.Node, names: tuple[str, ...]) -> Operand:
    """The operand, seen through the permutations between it and what computes it."""
    order = tuple(range(len(names)))
    # Batches stay in front, so that no extent is padded that stands for batches elsewhere.
    while node.target is PERMUTE and (len(names) == 2 or node.args[1][0] == 0):  # type: ignore[index]
        through: Any = node.args[1]
        order = tuple(through[i] % len(through) for i in order)
        node = node.args[0]  # type: ignore[assignment]
    return Operand(node, order, names)


def _common(found: list[Padded]) -> dict[fx.Node, set[int]]:
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


def _is_worth(one: Padded, extents: Mapping[fx.Node, set[int]], copies: bool) -> bool:
    """Whether the product is large enough, and what has to be copied for it is little beside it, or nothing."""
    sizes = {name: torch_compat.size_hint(size) for name, size in one.product.extents.items()}
    flops = 2
    for size in sizes.values():
        flops *= size
    if flops < _LEAST_FLOPS:
        return False
    bases = {operand.base for operand in one.operands if operand.base in extents}
    values = [base.meta["val"] for base in bases if not is_written_in_place(base)]
    values += [one.product.node.meta["val"]] if _lies_apart(one) else []
    copied = sum(2 * torch_compat.size_hint(value.numel()) * value.element_size() for value in values)
    saved = (one.product.slowdown() - 1) * flops
    return (copies or not copied) and saved >= _FLOPS_PER_BYTE * copied


def _lies_apart(one: Padded) -> bool:
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
