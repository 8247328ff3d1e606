"""Which rows of a large product nobody reads, though it has them, and which rows of gradients are zeros for that.

    mm(x, w) ─► cast, cap ─► [:, :-1] ─► loss           the last row of each sequence is unread in all of these
    gradient of the loss ─► zeros beside it ─► mm(.., w), mm(.., x)

So are rows of programs whose tokens predict the next ones.  A row is that of a dimension which counts the rows of a
sequence, or those of several sequences one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from remat_compiler.chunks.axes import axes_of
from remat_compiler.chunks.axis import Axis, is_plain, is_tuple, is_zero
from remat_compiler.chunks.cut import Partial, operands, shape_of
from remat_compiler.chunks.region import PRODUCTS, elements
from remat_compiler.chunks.rules import VIEWS, Range, range_of
from remat_compiler.chunks.tangent import depending_on, is_linear
from remat_compiler.chunks.writing import NotCuttable
from remat_compiler.torch_compat import Size, divided, number, product, same

_aten = torch.ops.aten


def ranges_behind(graph: fx.Graph, source: fx.Node, large: int) -> Iterator[Range]:
    """Ranges of rows that are taken of large values behind a node, each once."""
    known: list[Range] = []
    behind = depending_on(graph, [source])
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        rows = range_of(node) if node in behind else None
        if rows is None or elements(operands(node)[0].meta["val"]) < large or any(map(rows.is_same, known)):
            continue
        if 0 < number(rows.length) < number(rows.whole[rows.dimension]):
            known.append(rows)
            yield rows


class Unread:
    """Values of a graph of which no more than a range of the rows counts.

    Attributes:
        read: The range, as it is taken of a value.
        large: Elements of a value that is large.
        zeros: Values whose other rows are zeros, and the dimension of their rows.
        unread: The same of values whose other rows nobody reads.
    """

    def __init__(self, graph: fx.Graph, read: Range, large: int) -> None:
        self.read = read
        self.large = large
        self.zeros: dict[fx.Node, int] = {}
        self.unread: dict[fx.Node, int] = {}
        for node in graph.nodes:
            self._find_zeros(node)
        for node in reversed(graph.nodes):
            self._find_unread(node)

    def rows_of(self, node: fx.Node) -> int | None:
        """The dimension of a value's rows; `None` if all of them count, or it has none."""
        return self.zeros.get(node, self.unread.get(node))

    def axis(self, node: fx.Node) -> Axis | None:
        """The axis of an operator along which rows may be left out, of its result or of its sum."""
        dim = self.rows_of(node)
        if dim is None:
            axis = self._linear_axis(node)
            return axis if axis is not None and axis.results[0] is Partial.SUM else None
        if self.are_put_back(node):
            return None
        return next((axis for axis in self._axes(node) if axis.results[0] == dim), None)

    def read_along(self, user: fx.Node, node: fx.Node) -> set[int | None]:
        """Dimensions along which an operator reads rows that may be left out; with `None` if it reads all."""
        if self.are_taken(user):
            return {self.read.dimension}
        # Nothing is gained before the product.
        axis = None if user.target in PRODUCTS and not self.is_large(node) else self.axis(user)
        return {None if axis is None else axis.operands[i] for i, one in enumerate(operands(user)) if one is node}

    def are_taken(self, node: fx.Node) -> bool:
        """Whether an operator takes the rows that are read."""
        return node.target is _aten.slice.Tensor and self._is_of_range(node)

    def are_put_back(self, node: fx.Node) -> bool:
        """Whether an operator gives these rows with zeros beside them."""
        if node.target is _aten.slice_scatter.default:
            return is_zero(operands(node)[0]) and self._is_of_range(node)
        return node.target is _aten.slice_backward.default and self._is_of_range(node)

    def falls(self, node: fx.Node) -> bool:
        """Whether a product gives a small value, behind which nothing is gained."""
        return node.target in PRODUCTS and not self.is_large(node)

    def is_large(self, node: fx.Node) -> bool:
        """Whether a value is large."""
        return is_plain(node) and not is_tuple(node) and elements(node.meta["val"]) >= self.large

    @property
    def all(self) -> Size:
        """All rows of a sequence."""
        return self.read.whole[self.read.dimension]

    @property
    def around(self) -> tuple[Size, Size]:
        """How many rows are before and behind those that are read."""
        return self.read.start, self.all - self.read.start - self.read.length

    def left(self, shape: Sequence[Size], dim: int) -> list[Size]:
        """A shape with the rows that are read alone."""
        return [*shape[:dim], product((self._sequences(shape[dim]), self.read.length)), *shape[dim + 1 :]]

    def by_sequence(self, shape: Sequence[Size], dim: int, length: Size) -> list[Size]:
        """A shape with so many rows of each sequence in a dimension of their own, behind that of several sequences."""
        sequences = self._sequences(shape[dim])
        return [*shape[:dim], *([] if sequences == 1 else [sequences]), length, *shape[dim + 1 :]]

    def _sequences(self, rows: Size) -> Size:
        found = divided(rows, self.all)
        if found is None:
            raise NotCuttable(f"{rows} are not the rows of sequences of {self.all}")
        return found

    def _is_of_range(self, node: fx.Node) -> bool:
        rows = range_of(node)
        return rows is not None and rows.is_same(self.read)

    def _find_zeros(self, node: fx.Node) -> None:
        if self.are_put_back(node):
            self.zeros[node] = self.read.dimension
        elif node.op == "call_function":
            axis = self._linear_axis(node)
            if axis is not None and isinstance(axis.results[0], int):
                self.zeros[node] = axis.results[0]

    def _find_unread(self, node: fx.Node) -> None:
        if node.op != "call_function" or node in self.zeros or self.falls(node):
            return
        dims = {dim for user in node.users for dim in self.read_along(user, node)}
        dim = dims.pop() if len(dims) == 1 else None
        if dim is not None:
            self.unread[node] = dim

    def _linear_axis(self, node: fx.Node) -> Axis | None:
        """The axis of an operator along which rows of zeros give zeros, or are nothing in its sum."""
        given = [None if self.falls(one) else self.zeros.get(one) for one in operands(node)]
        if not any(dim is not None for dim in given) or not is_linear(node, [dim is not None for dim in given]):
            return None
        axes = self._axes(node)
        return next((a for a in axes if all(d is None or d == o for d, o in zip(given, a.operands))), None)

    def _axes(self, node: fx.Node) -> list[Axis]:
        """The axes of an operator; of one that counts elements in another shape, those that keep rows as they are."""
        if is_tuple(node):
            return []
        if node.target not in VIEWS:
            return axes_of(node)
        source = operands(node)[0]
        if not is_plain(node) or not is_plain(source):
            return []
        before, after = self._may_have_rows(source), self._may_have_rows(node)
        return [Axis((new,), (old,)) for old, one in before for new, other in after if same(one, other)]

    def _may_have_rows(self, node: fx.Node) -> list[tuple[int, Size]]:
        """Dimensions that may count rows, and the elements of each row."""
        shape = shape_of(node)
        may = (dim for dim, size in enumerate(shape) if divided(size, self.all) is not None)
        return [(dim, product(shape[dim + 1 :])) for dim in may]
