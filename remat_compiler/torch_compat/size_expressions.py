"""Sizes as expressions, which are compared and divided without a guard, and written into graphs as operators.

A size is a number, or an expression over symbols that is whole and at least 0 whatever numbers they stand for.  What is
known of them besides is torch's knowledge of the graph (see `sizes_of`), to which nothing is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions

from remat_compiler.torch_compat.size_nodes import SizeNodes
from remat_compiler.torch_compat.sizes import number_at, size_hint, sizes_at, sizes_now

Size: TypeAlias = "int | sympy.Expr"
_MIN: Any = functions.Min
_MAX: Any = functions.Max


def expression(size: int | torch.SymInt) -> Size:
    """A size as a number or an expression."""
    if isinstance(size, int):
        return size
    found = size.node.expr
    return int(found) if found.is_number else found


def has_expression(size: object) -> bool:
    """Whether a size is a number or follows from sizes of the inputs; not if it depends on data."""
    if isinstance(size, int):
        return True
    # The length of a jagged dimension has no expression.
    return isinstance(size, torch.SymInt) and hasattr(size.node, "expr") and size.node.has_hint()


_environment: ContextVar[Any] = ContextVar("remat_size_environment", default=None)


@contextmanager
def sizes_of(graph: fx.Graph) -> Iterator[None]:
    """Within the block symbols in a graph's sizes have numbers, see `sizes_at`, and are known as torch knows them."""
    numbers: dict[str, int] = {}
    environment = None
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and has_expression(size):
                environment = size.node.shape_env
                for symbol in size.node.expr.free_symbols:
                    if symbol.name not in numbers:
                        numbers[symbol.name] = size_hint(environment.create_symintnode(symbol, hint=None))
    token = _environment.set(environment)
    try:
        with sizes_at(numbers):
            yield
    finally:
        _environment.reset(token)


def number(size: Size) -> int:
    """What a size stands for (see `sizes_at`); all of its symbols must have a number."""
    found = size if isinstance(size, int) else number_at(size, sizes_now())
    assert found is not None, size
    return found


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes."""
    found = math.prod(sizes)
    return found if isinstance(found, int) else sympy.expand(found)


def same(one: Size, other: Size) -> bool:
    """Whether two sizes are known to be equal, whatever their symbols stand for."""
    if one == other or (isinstance(one, int) and isinstance(other, int)):
        return bool(one == other)
    if sympy.expand(one - other) == 0:
        return True
    environment = _environment.get()
    # The program may have compared them, as the rows of logits with those of targets that came as another input.
    return environment is not None and bool(environment._maybe_evaluate_static(sympy.Eq(one, other)))


def divided(size: Size, by: Size) -> Size | None:
    """The quotient; `None` if it is not known to be whole."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by if by and size % by == 0 else None
    found = size / sympy.sympify(by)
    # Dividing sums is slow, and mostly a factor is all there is to it.
    found = found if found.is_integer else sympy.cancel(found)
    return None if not found.is_integer else int(found) if found.is_number else found


def floor_divided(size: Size, by: int) -> Size:
    """The quotient without its fraction."""
    return size // by if isinstance(size, int) else functions.FloorDiv(size, sympy.Integer(by))


def least(one: Size, other: Size) -> Size:
    """The smaller of two."""
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return one if one == other else _MIN(sympy.sympify(one), sympy.sympify(other))


def most(one: Size, other: Size) -> Size:
    """The larger of two."""
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    return one if one == other else _MAX(sympy.sympify(one), sympy.sympify(other))


def is_in_order(value: torch.Tensor) -> bool:
    """Whether the elements are known to lie in memory one behind the other, the last dimension first."""
    shape, strides = map(expression, value.shape), map(expression, value.stride())
    behind: Size = 1
    for size, stride in reversed(tuple(zip(shape, strides))):
        if size != 1 and not same(stride, behind):
            return False
        behind = product((behind, size))
    return True


def with_symbols(args: Any, mode: FakeTensorMode) -> Any:
    """Arguments, nested, with torch's symbols in the place of expressions over symbols of the mode's tensors."""
    environment: Any = mode.shape_env
    return pytree.tree_map_only(sympy.Expr, lambda one: environment.create_symintnode(one, hint=None), args)


class UnknownSize(RuntimeError):
    """An expression that no operators are known for."""


def write_sizes(graph: fx.Graph) -> None:
    """Have operators compute the expressions that are given as arguments, behind the inputs (in place).

    Args:
        graph: The graph.

    Raises:
        UnknownSize: An expression has no operators, or a symbol of it is no input.
    """
    maker = SizeNodes(graph)

    def argument(one: Any) -> Any:
        if not isinstance(one, sympy.Expr):
            return one
        found = maker.value_of(one)
        if found is None:
            raise UnknownSize(f"no operators of the graph's inputs are known for the size {one}")
        return found

    for node in graph.nodes:
        given = (node.args, node.kwargs)
        if any(isinstance(one, sympy.Expr) for one in pytree.tree_leaves(given)):
            node.args, node.kwargs = pytree.tree_map(argument, given)
