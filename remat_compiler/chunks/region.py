"""The region around a product that makes far more than it reads: where its large values come from and go to.

    h, w ─► logits = mm ─► log_softmax ─► loss          rows of all large values are cut together;
              │               │                         small values between them are cut, too;
              │             gradient ─► mm(.., w)       what reads a large value and gives a small one leaves:
              └── large ──────┘      └► mm(.., h)       rows one behind the other, or parts of a sum

The region is closed: no value in it that is large is needed whole, by an operator without a rule or by the caller.  One
around attention may end at products, which read its results whole.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.source import source_line
from remat_compiler.chunks.axis import is_plain, is_tuple, results_of
from remat_compiler.chunks.cut import Cut, Cutting, Partial, Placement, operands
from remat_compiler.chunks.images import SAMPLING
from remat_compiler.chunks.indexing import SCATTERS
from remat_compiler.chunks.rules import cutting
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.torch_compat import expression, number

_aten = torch.ops.aten
PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default})
FALLS = PRODUCTS | SCATTERS | SAMPLING
"""Operators that make small values of large ones, behind which nothing is gained."""
MOST = 256
"""Operators of one layer, with its backward, at most: attention and gated layers have a tenth of it, or half if queries
and keys are rotated.  Where values between layers are as large as those within, each would reach through all of the
graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Operators that are computed in chunks.

    Attributes:
        product: The product whose result is large.
        cuttings: How each operator is cut, in the order of the graph; of an item, how its tuple is.
        chunks: How many chunks there are.
    """

    product: fx.Node
    cuttings: Mapping[fx.Node, Cutting]
    chunks: int

    def placement(self, node: fx.Node) -> Placement:
        """What becomes of an operator's result in chunks; of a tuple, its first."""
        return self.cuttings[node].results[0]

    def is_read_in_chunks(self, reader: fx.Node, position: int) -> bool:
        """Whether the reader's chunks read the chunks of this operand, and not its whole."""
        source = operands(reader)[position]
        if reader not in self.cuttings or source not in self.cuttings:
            return False
        if reader.target is operator.getitem:
            return True
        cut, placement = self.cuttings[reader].operands[position], self.placement(source)
        return placement == cut if cut is not None else placement is Partial.ANY

    def large(self, least: int) -> set[fx.Node]:
        """Values of at least so many elements that are there a chunk at a time."""
        cut = {node for node in self.cuttings if isinstance(self.placement(node), Cut) and not is_tuple(node)}
        return {node for node in cut.difference(self.leaving()) if elements(node.meta["val"]) >= least}

    def leaving(self) -> list[fx.Node]:
        """Operators whose whole results are read, in order."""
        return [
            node for node in self.cuttings if not is_tuple(node) and any(self.reads_whole(u, node) for u in node.users)
        ]

    def reads_whole(self, reader: fx.Node, source: fx.Node) -> bool:
        """Whether the reader reads the whole result of an operator of the region."""
        return any(o is source and not self.is_read_in_chunks(reader, i) for i, o in enumerate(operands(reader)))


def find_region(
    graph: fx.Graph, product: fx.Node, cut: Cut, large: int, most: int | None = None, *, up_to_products: bool = False
) -> Region | None:
    """The region around a product whose result is cut so; `None` if a large value would be needed whole.

    Args:
        graph: A joint graph.
        product: The product.
        cut: How its result is cut.
        large: Elements of values that count as large.
        most: Operators that the region may reach, lest it is sought in all of the graph; `None` for any number.
        up_to_products: Whether products behind it read its results whole, large ones, too, and are no part of it.
    """
    barred: set[fx.Node] = set()
    while product not in barred:
        found = _Search(graph, product, cut, large, barred, most, PRODUCTS if up_to_products else ())
        if found.stack:
            return None
        again = found.open_ends()
        if not again:
            kept = found.kept()
            return Region(product, {node: found.cuttings[node] for node in graph.nodes if node in kept}, cut.chunks)
        barred |= again
    return None


def reach(graph: fx.Graph, product: fx.Node, cut: Cut, large: int) -> dict[fx.Node, Cutting]:
    """All that can be cut with a product by rule, wherever that is; arguments as for `find_region`."""
    return _Search(graph, product, cut, large, (), None, ()).cuttings


class _Search:
    """What can be cut with a product, but for operators that are barred; `stack` is empty unless these are too many."""

    def __init__(
        self,
        graph: fx.Graph,
        product: fx.Node,
        cut: Cut,
        large: int,
        barred: Iterable[fx.Node],
        most: int | None,
        reading_whole: Container[Any],
    ) -> None:
        self.graph = graph
        self.large = large
        self.barred = frozenset(barred)
        self.reading_whole = reading_whole
        self.cuttings: dict[fx.Node, Cutting] = {}
        self.region = Region(product, self.cuttings, cut.chunks)  # as far as it is found
        self.stack: list[fx.Node] = []
        self._cut(product, None, cut)
        while self.stack and (most is None or len(self.cuttings) <= most):
            self._go_on(self.stack.pop())

    def _cut(self, node: fx.Node, operand: int | None, cut: Cut) -> None:
        """Cut an operator if its operand or its result may be cut so."""
        if node in self.cuttings or node in self.barred or (operand is not None and node.target in self.reading_whole):
            return
        found = cutting(node, operand, cut)
        if found is not None:
            self.cuttings[node] = found
            self.stack.append(node)

    def _go_on(self, node: fx.Node) -> None:
        """Cut what the operator reads, if it is large, and what reads its result."""
        found = self.cuttings[node]
        for source, cut in zip(operands(node), found.operands):
            # A large value that is made whole would be there beside all chunks.  One that is made of nothing is made
            # anew for each chunk: other regions may read the same.
            if cut is not None and operands(source) and self._is_large(source):
                self._cut(source, None, cut)
        if is_tuple(node):
            for user in node.users:
                if user.target is operator.getitem and user not in self.barred:
                    result = found.results[_position(user)]
                    self.cuttings[user] = Cutting((None,), (result,), found.changes)
                    self.stack.append(user)
            return
        result = found.results[0]
        maker = node.all_input_nodes[0] if node.target is operator.getitem else node
        if isinstance(result, Partial) or (maker.target in FALLS and not self._is_large(node)):
            return
        for user in node.users:
            position = operands(user).index(node)
            self._cut(user, position, result)

    def _is_large(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        return is_plain(node) and isinstance(value, torch.Tensor) and elements(value) >= self.large

    def _is_large_and_cut(self, node: fx.Node) -> bool:
        found = self.cuttings.get(node)
        if found is None or not isinstance(found.results[0], Cut):
            return False
        if is_tuple(node):
            return any(isinstance(v, torch.Tensor) and elements(v) >= self.large for v in node.meta["val"])
        return self._is_large(node)

    def open_ends(self) -> set[fx.Node]:
        """Operators whose large results something reads whole, one that is none of the region then among them."""
        found: set[fx.Node] = set()
        # Readers first.
        for node in sorted(filter(self._is_large_and_cut, self.cuttings), reverse=True):
            readers = (user for user in node.users if user.target not in self.reading_whole)
            if any(user in found or self.region.reads_whole(user, node) for user in readers):
                found.add(node)
        return found

    def kept(self) -> set[fx.Node]:
        """Operators with large results, those that read such, and what lies between them."""
        kept: set[fx.Node] = set()
        for node in reversed(self.graph.nodes):
            if node not in self.cuttings:
                continue
            between = any(user in kept and not self.region.reads_whole(user, node) for user in node.users)
            reads = any(
                self._is_large_and_cut(o) and not self.region.reads_whole(node, o) for o in node.all_input_nodes
            )
            if between or reads or self._is_large_and_cut(node):
                kept.add(node)
        # Items and their tuple stay together.
        for node in list(kept):
            if node.target is operator.getitem:
                kept.add(node.all_input_nodes[0])
            elif is_tuple(node):
                kept.update(user for user in node.users if user in self.cuttings)
        return kept


def elements(value: torch.Tensor) -> int:
    """How many elements a value has at the sizes that are planned for."""
    return torch_compat.size_hint(value.numel())


def _position(item: fx.Node) -> int:
    """Which of several results the item is."""
    position: Any = item.args[1]
    return int(position)


def whole_bytes(node: fx.Node) -> int:
    """Bytes of a value at the sizes that are planned for; of a tuple, of its first."""
    value = results_of(node)[0]
    return elements(value) * int(value.element_size())


def region_in_chunks(product: fx.Node, cut: Cut, what: str) -> ChunkedRegion:
    """What people are told of the region around a product whose result is cut so, or the rows of it that are read."""
    rows = max(number(cut.length(chunk)) for chunk in range(cut.chunks))
    # All rows have as many bytes.
    chunk_bytes = whole_bytes(product) * rows // number(expression(results_of(product)[0].shape[cut.first]))
    return ChunkedRegion(cut.chunks, product.name, source_line(product), whole_bytes(product), chunk_bytes, what)
