"""Losses in chunks: the amplifying product of a model's head, its loss, and the gradients of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.chunks.amplifiers import HEAD, HEADS, heads
from remat_compiler.chunks.axis import is_plain, is_tuple
from remat_compiler.chunks.cut import Cut, consists_of, even_bounds, shape_of
from remat_compiler.chunks.means import divide_last
from remat_compiler.chunks.region import MOST, Region, elements, find_region, reach, region_in_chunks, whole_bytes
from remat_compiler.chunks.rewriting import in_chunks, is_in_chunks
from remat_compiler.chunks.sparing import without_unread_rows
from remat_compiler.chunks.tangent import depending_on, multiples_of, scalar_tangents, take_out
from remat_compiler.chunks.writing import NotCuttable, copied
from remat_compiler.report.plan_report import ChunkedRegion
from remat_compiler.torch_compat import Size, number

SECOND = 4
"""Another loss is cut if so many of it are as large as the first."""
FARTHEST = 1024
"""Operators that the region of a loss may reach, lest each product of a deep model is one that all of it goes with;
`MOST` of one that is found by what it does alone."""
MANY = 4096
"""Operators of all chunks of such a loss at most."""


def chunk_losses(joint: fx.GraphModule, num_fwd_outputs: int, chunks: int) -> tuple[ChunkedRegion, ...]:
    """Compute the losses of a joint graph in chunks.

    Args:
        joint: Joint graph, prepared; its graph is replaced if there is something to cut, and else stays as it is.
        num_fwd_outputs: How many of its outputs belong to the forward.
        chunks: Most chunks; a region whose rows belong together may have fewer.

    Returns:
        What was cut, the largest first.
    """
    found: list[ChunkedRegion] = []
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
    return next(heads(joint, num_fwd_outputs), None) is not None


def values_of_losses(joint: fx.GraphModule, num_fwd_outputs: int) -> set[fx.Node]:
    """Values that may be smaller if losses are in more chunks; arguments as for `chunk_losses`."""
    found = set(filter(is_in_chunks, joint.graph.nodes))
    with torch_compat.sizes_of(joint.graph):
        for product, dim in heads(joint, num_fwd_outputs):
            large = elements(product.meta["val"]) // HEAD
            behind = (node for node in depending_on(joint.graph, [product]) if is_plain(node) and not is_tuple(node))
            alike = (node for node in behind if _has_classes(shape_of(node), product, dim))
            found |= {node for node in alike if elements(node.meta["val"]) >= large}
    return found


def _has_classes(shape: Sequence[Size], product: fx.Node, rows: int) -> bool:
    """Whether a value may be one of rows and classes; the gradient of the weights has as many rows as classes."""
    made = shape_of(product)
    return len(made) != 2 or made[1 - rows] in (shape[1:] if rows == 0 else shape[:1])


def _largest(
    joint: fx.GraphModule, num_fwd_outputs: int, chunks: int, least_bytes: int
) -> tuple[fx.Graph, ChunkedRegion] | None:
    """The joint graph with its largest loss of at least so many bytes in chunks; `None` if there is none."""
    too_far: set[tuple[fx.Node, int]] = set()
    for product, dim in heads(joint, num_fwd_outputs):
        if whole_bytes(product) < least_bytes:
            break
        rows = Cut(dim, dim, even_bounds(shape_of(product)[dim], chunks, 1))
        if (product, dim) in too_far or rows.chunks == 1:
            continue
        reached = reach(joint.graph, product, rows, elements(product.meta["val"]) // HEAD)
        if len(reached) > (FARTHEST if product.target in HEADS else MOST):
            # Those that are cut with each other reach the same operators.
            along = ((node, found.results[0]) for node, found in reached.items())
            too_far |= {(node, placed.first) for node, placed in along if isinstance(placed, Cut)}
            continue
        spared = without_unread_rows(joint.graph, product, dim)
        for graph, factor in ((joint.graph, product),) if spared is None else (spared, (joint.graph, product)):
            for granule in _granules(graph, factor, dim):
                cut = Cut(dim, dim, even_bounds(shape_of(factor)[dim], chunks, granule))
                try:
                    made = _with_loss_cut(graph, factor, cut) if cut.chunks > 1 else None
                except NotCuttable:
                    made = None
                if made is not None:
                    return made, region_in_chunks(product, cut, "loss")
    return None


def _granules(graph: fx.Graph, product: fx.Node, dim: int) -> list[Size]:
    """Rows that may have to stay together: 1, and those of one sequence where the rows are seen as several."""
    rows = shape_of(product)[dim]
    found: dict[Size, None] = {1: None}
    for node in graph.nodes:
        if is_plain(node) and not is_tuple(node) and len(shape_of(node)) > 2:
            batch, length, *_ = shape_of(node)
            if consists_of(rows, batch, length):
                found[length] = None
    return sorted(found, key=number)


def _with_loss_cut(graph: fx.Graph, found: fx.Node, cut: Cut) -> fx.Graph | None:
    """A graph with the loss behind this product in chunks; `None` if it is not to be cut."""
    nodes = copied(graph)
    product = nodes[found]
    new = product.graph
    large = elements(product.meta["val"]) // HEAD
    divide_last(new, large)
    region = find_region(new, product, cut, large)
    if region is None:
        return None
    # Products that nothing makes small again are those of a head; of images and pairs, it is their loss that tells.
    of_a_loss = product.target in HEADS
    for tangent in scalar_tangents(new):
        leaving = _leaving_with(new, region, tangent)
        if leaving:
            of_a_loss = True
            take_out(new, tangent, leaving)
            region = find_region(new, product, cut, large)
            if region is None:
                return None
    few = product.target in HEADS or len(region.cuttings) * region.chunks <= MANY
    return in_chunks(new, region) if of_a_loss and few else None


def _leaving_with(graph: fx.Graph, region: Region, tangent: fx.Node) -> list[fx.Node]:
    """Results of the region that are multiples of the tangent, if all that depends on any tangent in it is one."""
    multiples = multiples_of(graph, tangent)
    tangents: Iterable[fx.Node] = filter(torch_compat.is_tangent, graph.find_nodes(op="placeholder"))
    late = depending_on(graph, tangents)
    if any(node in late and node not in multiples for node in region.cuttings):
        return []
    return [node for node in region.leaving() if node in multiples]
