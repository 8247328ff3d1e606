"""Rows of a large product that nobody reads, left out before they are computed.

    before      mm(x, w) ─► cast, cap ─► [:, :-1] ─► loss ─► gradient ─► zeros beside it ─► mm(.., w), mm(.., x)
    after       mm(x[:, :-1], w) ─► cast, cap ─► loss ─► gradient ─► mm(.., w) with zeros beside it, mm(.., x[:, :-1])

So do programs whose tokens predict the next ones.  Rows of a range of each sequence can be cut only where sequences end;
rows that are there alone can be cut anywhere.

A row of a value is left out if nobody reads it, or if it is known to be zeros.  The row is that of a dimension which
counts the rows of a sequence, or of several sequences one behind the other.  Numbers in rows that are left out reach
nothing, not even as 0 times infinity.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from remat_compiler.capture.operators import has_tensor
from remat_compiler.chunks.axes import Axis, axes_of, is_plain, is_tuple
from remat_compiler.chunks.cut import Partial, operands, shape_of
from remat_compiler.chunks.region import LARGE, PRODUCTS, elements
from remat_compiler.chunks.rules import SHAPES, VIEWS, Range, range_of
from remat_compiler.chunks.tangent import depending_on, is_linear, is_zero
from remat_compiler.chunks.writing import (
    NotCuttable,
    arguments_with,
    call,
    call_like,
    copied,
    viewed,
    write_sizes,
)
from remat_compiler.torch_compat import Size, divided, number, product, same

_aten = torch.ops.aten


def without_unread_rows(graph: fx.Graph, found: fx.Node, dim: int) -> tuple[fx.Graph, fx.Node] | None:
    """The graph without rows of a product that nobody reads.

    Args:
        graph: A joint graph; it stays as it is.
        found: A product.
        dim: The dimension of its rows.

    Returns:
        Another graph, and the product in it; `None` if all rows are read, as far as is known.
    """
    large = elements(found.meta["val"]) // LARGE
    for rows in _ranges(graph, found, large):
        nodes = copied(graph)
        try:
            made = _Writer(nodes[found].graph, _Rows(rows, large)).write(nodes[found], dim)
        except NotCuttable:
            made = None
        if made is not None:
            # Rows of what is left may be taken again.
            return without_unread_rows(made.graph, made, dim) or (made.graph, made)
    return None


def _ranges(graph: fx.Graph, found: fx.Node, large: int) -> Iterator[Range]:
    """Ranges of rows that are taken of large values behind a product, each once."""
    known: list[Range] = []
    behind = depending_on(graph, [found])
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        rows = range_of(node) if node in behind else None
        if rows is None or elements(operands(node)[0].meta["val"]) < large or any(map(rows.is_same, known)):
            continue
        if 0 < number(rows.length) < number(rows.whole[rows.dimension]):
            known.append(rows)
            yield rows


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is known of the rows that are read.

    Attributes:
        read: They, as they are taken of a value.
        large: Elements of a value that is large.
    """

    read: Range
    large: int

    @property
    def all(self) -> Size:
        """All rows of a sequence."""
        return self.read.whole[self.read.dimension]

    def take(self, node: fx.Node) -> bool:
        """Whether an operator takes these rows."""
        return node.target is _aten.slice.Tensor and self._are_of(node)

    def are_put_back(self, node: fx.Node) -> bool:
        """Whether an operator gives these rows, and zeros beside them."""
        if node.target is _aten.slice_scatter.default:
            return is_zero(operands(node)[0]) and self._are_of(node)
        return node.target is _aten.slice_backward.default and self._are_of(node)

    def _are_of(self, node: fx.Node) -> bool:
        rows = range_of(node)
        return rows is not None and rows.is_same(self.read)

    def left(self, shape: Sequence[Size], dim: int) -> list[Size]:
        """A shape with these rows alone."""
        return [*shape[:dim], product((self._sequences(shape[dim]), self.read.length)), *shape[dim + 1 :]]

    def by_sequence(self, shape: Sequence[Size], dim: int, length: Size) -> list[Size]:
        """A shape with so many rows of each sequence, in a dimension of their own behind that of sequences."""
        sequences = self._sequences(shape[dim])
        return [*shape[:dim], *([] if sequences == 1 else [sequences]), length, *shape[dim + 1 :]]

    def _sequences(self, rows: Size) -> Size:
        found = divided(rows, self.all)
        if found is None:
            raise NotCuttable(f"{rows} are not the rows of sequences of {self.all}")
        return found

    @property
    def around(self) -> tuple[Size, Size]:
        """How many rows are left out before and behind them."""
        return self.read.start, self.all - self.read.start - self.read.length

    def axes(self, node: fx.Node) -> list[Axis]:
        """The axes of an operator; of one that counts elements in another shape, those that keep rows as they are."""
        if is_tuple(node):
            return []
        if node.target not in VIEWS:
            return axes_of(node)
        source = operands(node)[0]
        if not is_plain(node) or not is_plain(source):
            return []
        return [
            Axis((new,), (old,))
            for old, behind in self._rows_of(shape_of(source))
            for new, other in self._rows_of(shape_of(node))
            if same(behind, other)
        ]

    def _rows_of(self, shape: tuple[Size, ...]) -> list[tuple[int, Size]]:
        """Dimensions that may count rows, and the elements of each row."""
        may = (dim for dim, size in enumerate(shape) if divided(size, self.all) is not None)
        return [(dim, product(shape[dim + 1 :])) for dim in may]

    def falls(self, node: fx.Node) -> bool:
        """Whether a product gives a small value, behind which nothing is gained."""
        return node.target in PRODUCTS and not self.is_large(node)

    def is_large(self, node: fx.Node) -> bool:
        """Whether a value is large."""
        return is_plain(node) and not is_tuple(node) and elements(node.meta["val"]) >= self.large


class _Writer:
    """Mutable state of one rewriting."""

    def __init__(self, graph: fx.Graph, rows: _Rows) -> None:
        self.graph = graph
        self.rows = rows
        self.zeros: dict[fx.Node, int] = {}  # values, and the dimension along which other rows are zeros
        self.unread: dict[fx.Node, int] = {}  # the same where nobody reads them
        for node in graph.nodes:
            self._find_zeros(node)
        for node in reversed(graph.nodes):
            self._find_unread(node)
        self.left: dict[fx.Node, fx.Node] = {}  # values without these rows
        self.slices: dict[tuple[fx.Node, int], fx.Node] = {}

    def _find_zeros(self, node: fx.Node) -> None:
        if self.rows.are_put_back(node):
            self.zeros[node] = self.rows.read.dimension
        elif node.op == "call_function":
            axis = self._linear_axis(node)
            if axis is not None and isinstance(axis.results[0], int):
                self.zeros[node] = axis.results[0]

    def _linear_axis(self, node: fx.Node) -> Axis | None:
        """The axis of an operator to which rows of zeros give zeros; if it sums over them, nothing."""
        given = [None if self.rows.falls(one) else self.zeros.get(one) for one in operands(node)]
        if not any(dim is not None for dim in given) or not is_linear(node, [dim is not None for dim in given]):
            return None
        axes = self.rows.axes(node)
        return next((a for a in axes if all(d is None or d == o for d, o in zip(given, a.operands))), None)

    def _find_unread(self, node: fx.Node) -> None:
        if node.op != "call_function" or node in self.zeros or self.rows.falls(node):
            return
        dims = {dim for user in node.users for dim in self._read_along(user, node)}
        if len(dims) == 1:
            dim = dims.pop()
            if dim is not None:
                self.unread[node] = dim

    def _read_along(self, user: fx.Node, node: fx.Node) -> set[int | None]:
        """Dimensions along which a value's rows are read apart; `None` if rows are read that are to be left out."""
        if self.rows.take(user):
            return {self.rows.read.dimension}
        # Nothing is gained before the product.
        axis = None if user.target in PRODUCTS and not self.rows.is_large(node) else self._axis(user)
        if axis is None:
            return {None}
        return {dim for dim, operand in zip(axis.operands, operands(user)) if operand is node}

    def _axis(self, node: fx.Node) -> Axis | None:
        """The axis of an operator along which rows are left out, or are no part of its sum."""
        dim = self.zeros.get(node, self.unread.get(node))
        if dim is None:
            axis = self._linear_axis(node)
            return axis if axis is not None and axis.results[0] is Partial.SUM else None
        if self.rows.are_put_back(node):
            return None
        return next((axis for axis in self.rows.axes(node) if axis.results[0] == dim), None)

    def write(self, found: fx.Node, dim: int) -> fx.Node | None:
        """Leave the rows out where values are large; returns the product, `None` if all rows of it are read."""
        if self.unread.get(found) != dim:
            return None
        for node in list(self.graph.nodes):
            if node.op == "call_function":
                with self.graph.inserting_before(node):
                    self._write(node)
        made = self.left.get(found)
        self.graph.eliminate_dead_code()
        write_sizes(self.graph)
        return made

    def _write(self, node: fx.Node) -> None:
        if self.rows.take(node):
            left = self._left(node.all_input_nodes[0], self.rows.read.dimension)
            if left is not None:
                node.replace_all_uses_with(left)
        elif self.rows.are_put_back(node):
            self._leave(node, operands(node)[-1])
        else:
            self._write_axis(node)

    def _write_axis(self, node: fx.Node) -> None:
        axis = self._axis(node)
        if axis is None:
            return
        given = [None if dim is None else self._left(one, dim) for one, dim in zip(operands(node), axis.operands)]
        # Small values between large ones are cut, too.
        if not self.rows.is_large(node) and not any(given):
            return
        dim = axis.results[0]
        parts = iter(
            one if dim is None else left or self._slice(one, dim, node)
            for one, dim, left in zip(operands(node), axis.operands, given)
        )
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda one: next(parts) if has_tensor(one) else one)
        position = SHAPES.get(node.target)
        changes = {} if position is None or dim is Partial.SUM else {position: self.rows.left(shape_of(node), dim)}
        made = call_like(self.graph, node, arguments_with(node, args, changes), kwargs)
        if dim is Partial.SUM:
            node.replace_all_uses_with(made)
        else:
            self._leave(node, made)

    def _left(self, node: fx.Node, dim: int) -> fx.Node | None:
        """A value without the rows along a dimension, if it is computed so."""
        if node in self.left and self.zeros.get(node, self.unread.get(node)) != dim:
            raise NotCuttable(f"rows of {node} are read along another dimension")
        return self.left.get(node)

    def _slice(self, source: fx.Node, dim: int, reader: fx.Node) -> fx.Node:
        """The rows that are read of a value that is there as a whole."""
        if (source, dim) not in self.slices:
            shape = shape_of(source)
            every = self.rows.by_sequence(shape, dim, self.rows.all)
            value, place = self._seen(source, every, reader), len(every) - len(shape) + dim
            before, behind = self.rows.around
            lengths = [length for length in (before, self.rows.read.length, behind) if length != 0]
            # Not by a slice, which torch clamps: then the length of one that changes is no longer known.
            parts = call(self.graph, _aten.split_with_sizes.default, (value, lengths, place), like=reader)
            part = call(self.graph, operator.getitem, (parts, int(before != 0)), like=reader)
            self.slices[source, dim] = self._seen(part, self.rows.left(shape, dim), reader)
        return self.slices[source, dim]

    def _leave(self, node: fx.Node, left: fx.Node) -> None:
        """Have a value without these rows read in the place of the whole, or with zeros where that is needed."""
        falls, dim = self.rows.falls(node), self.zeros.get(node)
        if not falls:
            self.left[node] = left
        # Nobody reads the whole of others.
        readers = [] if dim is None else [u for u in node.users if falls or self._read_along(u, node) != {dim}]
        if dim is None or not readers:
            return
        shape = shape_of(node)
        parts = self._seen(left, self.rows.by_sequence(shape, dim, self.rows.read.length), node)
        amounts = [*[0, 0] * (len(shape) - dim - 1), *self.rows.around]
        padded = call(self.graph, _aten.constant_pad_nd.default, (parts, amounts, 0.0), like=node)
        whole = self._seen(padded, shape, node)
        node.replace_all_uses_with(whole, delete_user_cb=readers.__contains__)

    def _seen(self, value: fx.Node, shape: Sequence[Size], like: fx.Node) -> fx.Node:
        """A value in a shape of as many elements."""
        # Sequences have a dimension of their own, or there is one.
        return value if len(shape_of(value)) == len(shape) else viewed(self.graph, value, shape, like=like)
