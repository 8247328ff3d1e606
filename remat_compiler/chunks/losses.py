"""Losses in chunks: the amplifying product of a model's head, its loss, and the gradients of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.source import source_line
from remat_compiler.chunks.axes import is_plain, is_tuple
from remat_compiler.chunks.cut import Cut, even_bounds, operands, shape_of
from remat_compiler.chunks.means import divide_last
from remat_compiler.chunks.region import LARGE, PRODUCTS, Region, amplifiers, elements, find_region
from remat_compiler.chunks.rewriting import in_chunks, is_in_chunks
from remat_compiler.chunks.sparing import without_unread_rows
from remat_compiler.chunks.tangent import depending_on, multiples_of, scalar_tangents, take_out
from remat_compiler.chunks.writing import NotCuttable, copied
from remat_compiler.ir.graph import Phase
from remat_compiler.report.plan_report import ChunkedLoss
from remat_compiler.torch_compat import Size, number, same

AMPLIFIES = 4
"""Elements of the product for each of the operand whose rows are cut; below, little is gained."""
SECOND = 4
"""Another loss is cut if so many of it are as large as the first."""


def chunk_losses(joint: fx.GraphModule, num_fwd_outputs: int, chunks: int) -> tuple[ChunkedLoss, ...]:
    """Compute the losses of a joint graph in chunks.

    Args:
        joint: Joint graph, prepared; its graph is replaced if there is something to cut, and else stays as it is.
        num_fwd_outputs: How many of its outputs belong to the forward.
        chunks: Most chunks; a region whose rows belong together may have fewer.

    Returns:
        What was cut, the largest first.
    """
    found: list[ChunkedLoss] = []
    with torch_compat.sizes_of(joint.graph):
        while True:
            made = _largest(joint, num_fwd_outputs, chunks, found[0].whole_bytes // SECOND if found else 0)
            if made is None:
                break
            graph, loss = made
            joint.graph = graph
            found.append(loss)
    return tuple(found)


def has_losses(joint: fx.GraphModule, num_fwd_outputs: int) -> bool:
    """Whether there is a product in the forward with which a loss could be cut; arguments as for `chunk_losses`."""
    return next(_heads(joint, num_fwd_outputs), None) is not None


def _heads(joint: fx.GraphModule, num_fwd_outputs: int) -> Iterator[tuple[fx.Node, int]]:
    """Amplifying products whose large result no product of the forward makes small again, and the dimension to cut."""
    phases = find_phases(joint.graph, torch_compat.joint_outputs(joint, num_fwd_outputs)[0])
    forward = [n for n, phase in phases.items() if phase is Phase.FORWARD and not is_in_chunks(n)]
    for product, dim in amplifiers(joint.graph, forward, AMPLIFIES):
        # A layer's product is amplifying, too; what becomes of it is multiplied again in the forward.
        large = elements(product.meta["val"]) // LARGE
        behind = depending_on(joint.graph, [product])
        if not any(_contracts(node, large) for node in forward if node in behind and node is not product):
            yield product, dim


def _largest(
    joint: fx.GraphModule, num_fwd_outputs: int, chunks: int, least_bytes: int
) -> tuple[fx.Graph, ChunkedLoss] | None:
    """The joint graph with its largest loss of at least so many bytes in chunks; `None` if there is none."""
    for product, dim in _heads(joint, num_fwd_outputs):
        if _bytes(product) < least_bytes:
            break
        spared = without_unread_rows(joint.graph, product, dim)
        for graph, factor in ((joint.graph, product),) if spared is None else (spared, (joint.graph, product)):
            for granule in _granules(graph, factor, dim):
                cut = Cut(dim, dim, even_bounds(shape_of(factor)[dim], chunks, granule))
                try:
                    made = _with_loss_cut(graph, factor, cut) if cut.chunks > 1 else None
                except NotCuttable:
                    made = None
                if made is not None:
                    return made, _told(product, cut)
    return None


def _told(product: fx.Node, cut: Cut) -> ChunkedLoss:
    """What people are told of a product whose result is cut so, or the rows of it that are read."""
    rows = max(number(cut.length(chunk)) for chunk in range(cut.chunks))
    # All rows have as many bytes.
    chunk_bytes = _bytes(product) * rows // number(shape_of(product)[cut.first])
    return ChunkedLoss(cut.chunks, product.name, source_line(product), _bytes(product), chunk_bytes)


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return elements(value) * int(value.element_size())


def _contracts(node: fx.Node, large: int) -> bool:
    """Whether the node is a product that reads a large value and gives a small one."""
    if node.target not in PRODUCTS or not all(map(is_plain, (node, *operands(node)))):
        return False
    # Layers of four times the width come back to exactly what counts as large.
    return max(elements(one.meta["val"]) for one in operands(node)) >= large >= elements(node.meta["val"])


def _granules(graph: fx.Graph, product: fx.Node, dim: int) -> list[Size]:
    """Rows that may have to stay together: 1, and those of one sequence where the rows are seen as several."""
    rows = shape_of(product)[dim]
    found: dict[Size, None] = {1: None}
    for node in graph.nodes:
        if is_plain(node) and not is_tuple(node) and len(shape_of(node)) > 2:
            batch, length, *_ = shape_of(node)
            if same(torch_compat.product((batch, length)), rows):
                found[length] = None
    return sorted(found, key=number)


def _with_loss_cut(graph: fx.Graph, found: fx.Node, cut: Cut) -> fx.Graph | None:
    """A graph with the loss behind this product in chunks; `None` if it is not to be cut."""
    nodes = copied(graph)
    product = nodes[found]
    new = product.graph
    divide_last(new, elements(product.meta["val"]) // LARGE)
    region = find_region(new, product, cut)
    if region is None:
        return None
    for tangent in scalar_tangents(new):
        leaving = _leaving_with(new, region, tangent)
        if leaving:
            take_out(new, tangent, leaving)
            region = find_region(new, product, cut)
            if region is None:
                return None
    return in_chunks(new, region)


def _leaving_with(graph: fx.Graph, region: Region, tangent: fx.Node) -> list[fx.Node]:
    """Results of the region that are multiples of the tangent, if all that depends on any tangent in it is one."""
    multiples = multiples_of(graph, tangent)
    tangents: Iterable[fx.Node] = filter(torch_compat.is_tangent, graph.find_nodes(op="placeholder"))
    late = depending_on(graph, tangents)
    if any(node in late and node not in multiples for node in region.cuttings):
        return []
    return [node for node in region.leaving() if node in multiples]
