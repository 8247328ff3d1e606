"""Products that make far more than they read: those of a model's head, and those within layers.

of a head       h, w ─► logits ─► loss, a scalar          no product of the forward makes logits small again
                scores of an image ─► enlarged ─► loss    as where each of its pixels has a class
of a layer      x, w1 ─► mm ─► gelu ─► mm(.., w2)         one does
                q, k ─► bmm ─► softmax ─► bmm(.., v)
                nodes ─► for each edge ─► messages ─► added up at nodes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.phases import find_phases
from remat_compiler.chunks.axes import axes_of
from remat_compiler.chunks.axis import is_plain
from remat_compiler.chunks.cut import operands, shape_of
from remat_compiler.chunks.indexing import GATHERS
from remat_compiler.chunks.region import FALLS, PRODUCTS, elements, whole_bytes
from remat_compiler.chunks.rewriting import is_in_chunks
from remat_compiler.ir.graph import Phase

AMPLIFYING = PRODUCTS | GATHERS
"""Operators that may make more than they read."""
HEAD = 4
"""Elements that a head makes for each of the operand whose rows are cut, and the part of its result that is large."""
LAYER = 2
"""The same of a layer, where values are less apart: those between layers are not large, those within one are."""


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
    """Amplifying products of the forward that are whole, and whose results become small in it, or do not."""
    phases = find_phases(joint.graph, torch_compat.joint_outputs(joint, num_fwd_outputs)[0])
    forward = [node for node, phase in phases.items() if phase is Phase.FORWARD and not is_in_chunks(node)]
    above: dict[int, set[fx.Node]] = {}
    for product, dim in _amplifiers(joint.graph, forward, part):
        large = elements(product.meta["val"]) // part
        if large not in above:
            above[large] = _above_a_fall(joint.graph, set(forward), large)
        if (product in above[large]) is fall:
            yield product, dim


def _amplifiers(graph: fx.Graph, among: Iterable[fx.Node], least: int) -> list[tuple[fx.Node, int]]:
    """Products that make at least so many elements for each that they read, and the dimension along which they do."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    found: list[tuple[int, int, int, fx.Node]] = []
    for node in among:
        if node.target not in AMPLIFYING or not is_plain(node) or not axes_of(node):
            continue
        made = elements(node.meta["val"])
        for dim, factor in _ways(node, least):
            if made and made >= least * elements(factor.meta["val"]):
                found.append((-whole_bytes(node), place[node], dim, node))
    return [(node, dim) for _, _, dim, node in sorted(found)]


def _ways(node: fx.Node, least: int) -> list[tuple[int, fx.Node]]:
    """Dimensions of a result that may be cut, and what it is to be large beside."""
    given, rank = operands(node), len(shape_of(node))
    if node.target in GATHERS:
        # Images of a head, and what is taken again and again within a layer, as nodes are for their edges.
        ways = [axis.results[0] for axis in axes_of(node) if (axis.operands[0] is None) is (least == LAYER)]
        return [(dim, given[0]) for dim in ways[:1] if isinstance(dim, int)]
    if rank == 2:
        return list(enumerate(given[-2:]))
    return [(0, max(given[-2:], key=lambda one: elements(one.meta["val"])))] if least == LAYER else []


def _above_a_fall(graph: fx.Graph, forward: set[fx.Node], large: int) -> set[fx.Node]:
    """Operators behind which the forward makes a large value small."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if any(user in found or (user in forward and contracts(user, large)) for user in node.users):
            found.add(node)
    return found


def contracts(node: fx.Node, large: int) -> bool:
    """Whether the node is a product, or adds up elements, and reads a large value and gives a small one."""
    if node.target not in FALLS or not all(map(is_plain, (node, *operands(node)))):
        return False
    # Layers of four times the width come back to exactly what counts as large.
    return max(elements(one.meta["val"]) for one in operands(node)) >= large >= elements(node.meta["val"])
