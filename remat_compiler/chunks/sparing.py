"""A joint graph without the rows of a large product that nobody reads: they are left out before they are computed.

    before      mm(x, w) ─► cast, cap ─► [:, :-1] ─► loss ─► gradient ─► zeros beside it ─► mm(.., w), mm(.., x)
    after       mm(x[:, :-1], w) ─► cast, cap ─► loss ─► gradient ─► mm(.., w) with zeros beside it, mm(.., x[:, :-1])

A range of the rows of each sequence can be cut only where sequences end; rows that are there alone can be cut anywhere.
Numbers in rows that are left out reach nothing, not even as 0 times infinity.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from remat_compiler.capture.operators import has_tensor
from remat_compiler.chunks.amplifiers import HEAD
from remat_compiler.chunks.cut import Partial, operands, shape_of
from remat_compiler.chunks.region import elements
from remat_compiler.chunks.rules import told
from remat_compiler.chunks.unread import Unread, ranges_behind
from remat_compiler.chunks.writing import (
    NotCuttable,
    arguments_with,
    call,
    call_like,
    copied,
    in_order,
    viewed,
    write_sizes,
)
from remat_compiler.torch_compat import Size

_aten = torch.ops.aten


def without_unread_rows(graph: fx.Graph, product: fx.Node, dim: int) -> tuple[fx.Graph, fx.Node] | None:
    """The graph without the rows of a product that nobody reads.

    Args:
        graph: A joint graph; it stays as it is.
        product: A product whose result is large.
        dim: The dimension of its rows.

    Returns:
        Another graph, and the product in it; `None` if all rows are read, as far as is known.
    """
    large = elements(product.meta["val"]) // HEAD
    for rows in ranges_behind(graph, product, large):
        nodes = copied(graph)
        new, found = nodes[product].graph, nodes[product]
        unread = Unread(new, rows, large)
        if unread.rows_of(found) != dim or unread.axis(found) is None:
            continue
        try:
            made = _Writer(new, unread).write(found)
        except NotCuttable:
            continue
        # A range may be taken of what is left.
        return without_unread_rows(new, made, dim) or (new, made)
    return None


class _Writer:
    """Mutable state of one rewriting."""

    def __init__(self, graph: fx.Graph, unread: Unread) -> None:
        self.graph = graph
        self.unread = unread
        self.left: dict[fx.Node, fx.Node] = {}  # values without the rows, for those that are computed so
        self.slices: dict[tuple[fx.Node, int], fx.Node] = {}

    def write(self, product: fx.Node) -> fx.Node:
        """Leave the rows out where values are large (in place); returns the product."""
        for node in list(self.graph.nodes):
            if node.op == "call_function":
                with self.graph.inserting_before(node):
                    self._write(node)
        self.graph.eliminate_dead_code()
        write_sizes(self.graph)
        return self.left[product]

    def _write(self, node: fx.Node) -> None:
        if self.unread.are_taken(node):
            left = self._left(operands(node)[0], self.unread.read.dimension)
            if left is not None:
                node.replace_all_uses_with(left)
        elif self.unread.are_put_back(node):
            # The whole lies in order, which views behind it rely on.
            self._leave(node, in_order(self.graph, operands(node)[-1], like=node))
        else:
            self._write_on_rows(node)

    def _write_on_rows(self, node: fx.Node) -> None:
        """Write an operator that reads or makes values without the rows."""
        axis = self.unread.axis(node)
        if axis is None:
            return
        given = [None if dim is None else self._left(one, dim) for one, dim in zip(operands(node), axis.operands)]
        # Small values between large ones have no more rows than these.
        if not self.unread.is_large(node) and not any(given):
            return
        parts = iter(
            one if dim is None else left or self._slice(one, dim, node)
            for one, dim, left in zip(operands(node), axis.operands, given)
        )
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda one: next(parts) if has_tensor(one) else one)
        dim = axis.results[0]
        if isinstance(dim, Partial):
            node.replace_all_uses_with(call_like(self.graph, node, args, kwargs))
            return
        changes = told(node, self.unread.left(shape_of(node), dim))
        self._leave(node, call_like(self.graph, node, arguments_with(node, args, changes), kwargs))

    def _left(self, node: fx.Node, dim: int) -> fx.Node | None:
        """A value without the rows along a dimension, if it is computed so."""
        if node in self.left and self.unread.rows_of(node) != dim:
            raise NotCuttable(f"rows of {node} are read along another dimension")
        return self.left.get(node)

    def _leave(self, node: fx.Node, left: fx.Node) -> None:
        """Have a value without the rows read in the place of the whole, or with zeros where the whole is needed."""
        falls, dim = self.unread.falls(node), self.unread.zeros.get(node)
        if not falls:
            self.left[node] = left
        if dim is None:
            return
        readers = [user for user in node.users if falls or self.unread.read_along(user, node) != {dim}]
        if readers:
            whole = self._with_zeros(node, left, dim)
            node.replace_all_uses_with(whole, delete_user_cb=readers.__contains__)

    def _with_zeros(self, node: fx.Node, left: fx.Node, dim: int) -> fx.Node:
        shape = shape_of(node)
        rows = self._seen(left, self.unread.by_sequence(shape, dim, self.unread.read.length), node)
        amounts = [*[0, 0] * (len(shape) - dim - 1), *self.unread.around]
        padded = call(self.graph, _aten.constant_pad_nd.default, (rows, amounts, 0.0), like=node)
        return self._seen(padded, shape, node)

    def _slice(self, source: fx.Node, dim: int, reader: fx.Node) -> fx.Node:
        """The rows that are read of a value that is there as a whole."""
        if (source, dim) not in self.slices:
            shape = shape_of(source)
            by_sequence = self.unread.by_sequence(shape, dim, self.unread.all)
            value, place = self._seen(source, by_sequence, reader), len(by_sequence) - len(shape) + dim
            before, behind = self.unread.around
            lengths = [length for length in (before, self.unread.read.length, behind) if length != 0]
            # Not by a slice, which torch clamps: then the length of one that changes is no longer known.
            parts = call(self.graph, _aten.split_with_sizes.default, (value, lengths, place), like=reader)
            part = call(self.graph, operator.getitem, (parts, int(before != 0)), like=reader)
            part = in_order(self.graph, part, like=reader)
            self.slices[source, dim] = self._seen(part, self.unread.left(shape, dim), reader)
        return self.slices[source, dim]

    def _seen(self, value: fx.Node, shape: Sequence[Size], like: fx.Node) -> fx.Node:
        """A value with a dimension of sequences, or without it."""
        return value if len(shape_of(value)) == len(shape) else viewed(self.graph, value, shape, like=like)
