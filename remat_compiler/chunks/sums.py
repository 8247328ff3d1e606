"""Sums of what leaves a region are taken within it, a chunk at a time: one whole value is made in place of its terms.

    dy ─► .. ─► mm(.., gate) ─┐                      gradients of a value that several products read
           └─► mm(.., up) ────┴─► add                are made whole once, and not each for itself
    h ─► mm(.., down) ─────────┐
     └─► mm(.., a) ─► mm(.., b) ┴─► add              small products beside a large one likewise

A sum with something that is whole anyway, such as what a layer is added to, spares nothing and stays behind the region.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import fx

from remat_compiler.chunks.axis import is_plain, is_tuple
from remat_compiler.chunks.cut import Cut, Cutting, operands
from remat_compiler.chunks.region import PRODUCTS, Region, whole_bytes
from remat_compiler.chunks.rules import cutting
from remat_compiler.chunks.tangent import depending_on

_SUM = torch.ops.aten.add.Tensor
REACH = 4
"""Operators between what leaves a region and a sum, such as views and a factor, at most."""
MOST = 16
"""Operators that one more sum takes into a region, at most."""


def with_sums(graph: fx.Graph, region: Region, roots: Mapping[fx.Node, fx.Node], taken: Collection[fx.Node]) -> Region:
    """The region with all sums in it that make one whole value of two or more.

    Args:
        graph: A joint graph.
        region: A region of it.
        roots: For each value, the one whose memory it lies in.
        taken: Operators of other regions.
    """
    behind = depending_on(graph, region.cuttings).difference(region.cuttings)
    while (larger := _with_one_more(graph, region, roots, behind, taken)) is not None:
        region = larger
    return region


def _with_one_more(
    graph: fx.Graph,
    region: Region,
    roots: Mapping[fx.Node, fx.Node],
    behind: Collection[fx.Node],
    taken: Collection[fx.Node],
) -> Region | None:
    """The region with the first sum in it that spares a whole value, among operators `behind` it; `None` without."""
    for total, cut in _sums(region):
        terms = _Terms(region, behind, taken)
        if terms.take(total, cut):
            cuttings = {**region.cuttings, **terms.cuttings}
            in_order = {node: cuttings[node] for node in graph.nodes if node in cuttings}
            larger = Region(region.product, in_order, region.chunks)
            if _is_less(larger, region, roots):
                return larger
    return None


def _sums(region: Region) -> Iterator[tuple[fx.Node, Cut]]:
    """Sums a few operators behind a region, and how they are cut with what leaves it."""
    for left in region.leaving():
        reached = [(left, region.placement(left))]
        for _ in range(REACH):
            reached = [
                (user, found.results[0])
                for node, placement in reached
                if isinstance(placement, Cut)
                for user in node.users
                if user not in region.cuttings and is_plain(user) and not is_tuple(user)
                if (found := cutting(user, operands(user).index(node), placement)) is not None
            ]
            yield from ((node, cut) for node, cut in reached if node.target is _SUM and isinstance(cut, Cut))


class _Terms:
    """What is to be cut with a sum: `cuttings`.

    Args:
        region: A region.
        behind: Operators that depend on it.
        taken: Operators that cannot be cut, too.
    """

    def __init__(self, region: Region, behind: Collection[fx.Node], taken: Collection[fx.Node]) -> None:
        self.region, self.behind, self.taken = region, behind, taken
        self.cuttings: dict[fx.Node, Cutting] = {}

    def take(self, node: fx.Node, cut: Cut) -> bool:
        """Whether an operator whose result is cut so needs nothing whole of what depends on the region."""
        if node in self.cuttings:
            return self.cuttings[node].results[0] == cut
        found = cutting(node, None, cut)
        if found is None or node in self.taken or len(self.cuttings) >= MOST or is_tuple(node):
            return False
        self.cuttings[node] = found
        return all(self._is_there(source, own) for source, own in zip(operands(node), found.operands, strict=True))

    def _is_there(self, source: fx.Node, cut: Cut | None) -> bool:
        if source in self.region.cuttings:
            return cut is not None and self.region.placement(source) == cut
        if source not in self.behind:
            return True
        return cut is not None and self.take(source, cut)


def _is_less(larger: Region, region: Region, roots: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether one more whole value is made, and two or more as large are not."""
    more = larger.cuttings.keys() - region.cuttings.keys()
    # What is not a product is mostly computed where it is read.
    whole = {roots[node] for node in (*region.leaving(), *(one for one in more if one.target in PRODUCTS))}
    left = {roots[node] for node in larger.leaving()}
    least = max(map(whole_bytes, more & left), default=0)
    return sum(2 * whole_bytes(one) >= least for one in whole - left) >= 2
