"""One dimension of an operator along which it may be cut, and what is asked of operators that are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import is_random
from remat_compiler.chunks.cut import Partial, operands
from remat_compiler.torch_compat import Size, same

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension along which an operator may be cut.

    Attributes:
        results: Its dimension in each result, or that it is summed over.
        operands: Its dimension in each operand; `None` where every slice reads all of it.
    """

    results: tuple[int | Partial, ...]
    operands: tuple[int | None, ...]


def may_be_cut(node: fx.Node) -> bool:
    """Whether it is an operator on plain tensors that does nothing but compute its result from them."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return not is_random(node) and all(map(is_plain, (node, *operands(node))))


def is_plain(node: fx.Node) -> bool:
    """Whether the node is a tensor, or some tensors, of sizes that follow from those of the inputs."""
    values = node.meta.get("val")
    if not isinstance(values, (list, tuple)):
        values = (values,)
    # A result that an operator does not make is None, and a number has no dimensions.
    given = [value for value in values if value is not None and type(value) is not int]
    return bool(given) and all(
        isinstance(v, torch.Tensor) and v.layout is torch.strided and all(map(torch_compat.has_expression, v.shape))
        for v in given
    )


def is_tuple(node: fx.Node) -> bool:
    """Whether the node's value is several tensors."""
    return isinstance(node.meta.get("val"), (list, tuple))


def results_of(node: fx.Node) -> list[Any]:
    """What an operator makes: tensors, and, for some that it may make, `None` or a number."""
    values = node.meta["val"]
    return list(values) if isinstance(values, (list, tuple)) else [values]


def at(dim: Any, rank: int) -> int:
    """A dimension counted from the front."""
    return int(dim) % max(rank, 1)


def argument(node: fx.Node, position: int) -> Any:
    """The argument at a position of the schema, however it is given, or its default."""
    if position < len(node.args):
        return node.args[position]
    named = node.target._schema.arguments[position]  # type: ignore[union-attr]
    return node.kwargs.get(named.name, named.default_value)


UNKNOWN: Any = object()
"""A dimension of which it is not known whether it is stretched to another."""


def aligned(dim: int, shape: Sequence[Size], given: Sequence[Size]) -> int | None:
    """The dimension of an operand that is the result's `dim`; `None` if it is stretched to that."""
    place = dim - (len(shape) - len(given))
    if place >= 0 and same(given[place], shape[dim]):
        return place
    return None if place < 0 or given[place] == 1 else UNKNOWN


def is_zero(node: fx.Node) -> bool:
    """Whether the node is known to be zeros."""
    if node.target in (_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default):
        return True
    position = _VALUES.get(node.target)
    return position is not None and argument(node, position) == 0


_VALUES: dict[Any, int] = {
    _aten.full.default: 1,
    _aten.full_like.default: 1,
    _aten.new_full.default: 2,
    _aten.scalar_tensor.default: 0,
}
