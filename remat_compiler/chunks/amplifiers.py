"""Operators that make far more than they read: those of a model's head, and those within layers.

of a head       h, w ─► logits ─► loss, a scalar          no product of the forward makes logits small again
                scores of an image ─► enlarged ─► loss    as where each of its pixels has a class
of a layer      x, w1 ─► mm ─► gelu ─► mm(.., w2)         one does
                q, k ─► bmm ─► softmax ─► bmm(.., v)
                nodes ─► for each edge ─► messages ─► added up at nodes
                x[:, None] - y[None] ─► norm ─► summed    of what is stretched to each other, a sum does, too
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.storages import find_roots
from remat_compiler.chunks.axes import REDUCTIONS, axes_of, is_elementwise
from remat_compiler.chunks.axis import is_plain, is_tuple, may_be_cut, results_of
from remat_compiler.chunks.cut import operands, shape_of
from remat_compiler.chunks.images import IMAGES
from remat_compiler.chunks.indexing import GATHERS
from remat_compiler.chunks.region import FALLS, PRODUCTS, elements, whole_bytes
from remat_compiler.chunks.rewriting import is_in_chunks
from remat_compiler.ir.graph import Phase

HEADS = PRODUCTS | GATHERS
"""Operators of a head by what they are."""
HEAD = 4
"""Elements that a head makes for each of the operand whose rows are cut, and the part of its result that is large."""
LAYER = 2
"""The same of a layer, where values are less apart: those between layers are not large, those within one are."""
ENOUGH = 64
"""More rows than these make no more chunks."""


def heads(joint: fx.GraphModule, num_fwd_outputs: int) -> Iterator[tuple[fx.Node, int]]:
    """Products of the forward whose large result stays large, and the dimension to cut; the largest first.

    Args:
        joint: A joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
    """
    return _products(joint, num_fwd_outputs, HEAD, fall=False)


def layers(joint: fx.GraphModule, num_fwd_outputs: int) -> Iterator[tuple[fx.Node, int]]:
    """Products of the forward whose large result another product makes small; arguments and order as for `heads`."""
    return _products(joint, num_fwd_outputs, LAYER, fall=True)


def _products(joint: fx.GraphModule, num_fwd_outputs: int, part: int, *, fall: bool) -> Iterator[tuple[fx.Node, int]]:
    """Amplifying operators of the forward that are whole, and whose results become small in it, or do not."""
    phases = find_phases(joint.graph, torch_compat.joint_outputs(joint, num_fwd_outputs)[0])
    forward = [node for node, phase in phases.items() if phase is Phase.FORWARD and not is_in_chunks(node)]
    above: dict[tuple[int, bool], set[fx.Node]] = {}
    for product, dim in _amplifiers(joint.graph, forward, part):
        large, sums = elements(product.meta["val"]) // part, fall and is_stretching(product)
        if (large, sums) not in above:
            above[large, sums] = _above_a_fall(joint.graph, set(forward), large, sums=sums)
        if (product in above[large, sums]) is fall:
            yield product, dim


def _amplifiers(graph: fx.Graph, among: Iterable[fx.Node], least: int) -> list[tuple[fx.Node, int]]:
    """Operators that make at least so many elements for each that they read, and the dimension along which they do."""
    place, roots = {node: i for i, node in enumerate(graph.nodes)}, find_roots(graph)
    found: list[tuple[int, int, int, int, fx.Node]] = []
    for node in among:
        if not may_be_cut(node) or is_tuple(node) or roots.get(node) is not node:
            continue
        made, given = elements(node.meta["val"]), [one for one in operands(node) if not is_tuple(one)]
        # Most operators make as much as they read: no more is asked of them, since there are many.
        if not made or not given or made < least * min(map(_elements, given)):
            continue
        for i, (dim, read) in enumerate(_ways(node, least, roots)):
            if made >= least * read:
                found.append((-whole_bytes(node), place[node], i, dim, node))
    return [(node, dim) for *_, dim, node in sorted(found)]


def is_stretching(node: fx.Node) -> bool:
    """Whether it is an operator on single elements: it makes more than it reads if operands are stretched to others."""
    return is_elementwise(node) and node.meta["val"].dtype.is_floating_point


def _ways(node: fx.Node, least: int, roots: Mapping[fx.Node, fx.Node]) -> list[tuple[int, int]]:
    """Dimensions of a result that may be cut, the best first, and the elements that it is to be large beside."""
    given, axes, target = operands(node), axes_of(node), node.target
    if not axes:
        return []
    if target in GATHERS:
        # What is taken again and again within a layer, as nodes are for their edges; and images, as of a head.
        taken, kept = ([axis.results[0] for axis in axes if (axis.operands[0] is None) is one] for one in (True, False))
        ways = [*(taken[:1] if least == LAYER else []), *kept[:1]]
        return [(dim, _elements(given[0])) for dim in ways if isinstance(dim, int)]
    if target in PRODUCTS:
        if len(shape_of(node)) == 2:
            return [(dim, _elements(one)) for dim, one in enumerate(given[-2:])]
        return [(0, max(map(_elements, given[-2:])))] if least == LAYER else []
    if target in IMAGES:
        return [(0, _elements(given[0]))]
    if is_stretching(node):
        read = sum(map(_elements, {roots[one] for one in given}))
        # As many chunks as may be asked for, along the first dimension that has them.
        dims = [dim for axis in axes if isinstance(dim := axis.results[0], int)]
        return [(dim, read) for dim in sorted(dims, key=lambda dim: -min(_rows(node, dim), ENOUGH))]
    return []


def _rows(node: fx.Node, dim: int) -> int:
    return torch_compat.size_hint(node.meta["val"].shape[dim])


def _elements(node: fx.Node) -> int:
    return elements(node.meta["val"])


def _above_a_fall(graph: fx.Graph, forward: set[fx.Node], large: int, *, sums: bool) -> set[fx.Node]:
    """Operators behind which the forward makes a large value small."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if any(user in found or (user in forward and contracts(user, large, sums=sums)) for user in node.users):
            found.add(node)
    return found


def contracts(node: fx.Node, large: int, *, sums: bool = False) -> bool:
    """Whether the node is a product, or adds up elements, and reads a large value and gives a small one.

    Args:
        node: A node of a joint graph.
        large: Elements of values that count as large.
        sums: Whether other operators that make one element of many do so, too.
    """
    falls = node.target in FALLS or (sums and node.target in REDUCTIONS)
    if not falls or not all(map(is_plain, (node, *operands(node)))):
        return False
    made = max(elements(one) for one in results_of(node) if isinstance(one, torch.Tensor))
    # Layers of four times the width come back to exactly what counts as large.
    return max(map(_elements, operands(node))) >= large >= made
