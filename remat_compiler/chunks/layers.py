"""Layers in chunks: products within them that make far more than they read, up to where values are small again.

    x, w1 ─► mm ─► gelu ─► mm(.., w2)          feed-forward layers: tokens in chunks
    q, k ─► bmm ─► softmax ─► bmm(.., v)       attention without a fused kernel: heads in chunks
    q, k, v ─► rotated ─► attention            with one: likewise, or sequences (`heads`)
    nodes ─► messages of edges ─► added up     edges in chunks

Forward and backward of a layer are in chunks of their own: of the values between them, plans keep or recompute each
chunk by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.storages import find_roots
from remat_compiler.chunks.amplifiers import LAYER, contracts, is_stretching, layers
from remat_compiler.chunks.attention import ATTENTION
from remat_compiler.chunks.axis import results_of
from remat_compiler.chunks.cut import Cut, even_bounds, shape_of
from remat_compiler.chunks.heads import attention_regions, attentions
from remat_compiler.chunks.region import MOST, Region, elements, find_region, region_in_chunks, whole_bytes
from remat_compiler.chunks.rewriting import in_chunks
from remat_compiler.chunks.sums import with_sums
from remat_compiler.chunks.writing import NotCuttable
from remat_compiler.report.plan_report import ChunkedRegion

SMALLEST = 4
"""Layers are cut if so many of the product of one are as large as the first."""


def chunk_layers(
    joint: fx.GraphModule, num_fwd_outputs: int, chunks: int, *, attention: bool = True
) -> tuple[ChunkedRegion, ...]:
    """Compute layers of a joint graph in chunks, if one is as large as the largest, or nearly.

    Args:
        joint: Joint graph, prepared; its graph is replaced if there is something to cut, and else stays as it is.
        num_fwd_outputs: How many of its outputs belong to the forward.
        chunks: Most chunks of each.
        attention: Whether attention by one operator, or what holds such, may be cut.

    Returns:
        What was cut, the largest first; layers that are alike are one.
    """
    with torch_compat.sizes_of(joint.graph):
        found = list(_regions(joint, num_fwd_outputs, chunks, attention=attention))
        made = _written(joint.graph, [region for region, _ in found])
        if made is None:
            return ()
        joint.graph, cut = made
    return together([told for region, told in found if region in cut])


def has_layers(joint: fx.GraphModule, num_fwd_outputs: int) -> bool:
    """Whether there is a product with which a layer could be cut; arguments as for `chunk_layers`."""
    return next(layers(joint, num_fwd_outputs), None) is not None


def values_of_layers(joint: fx.GraphModule, num_fwd_outputs: int, *, attention: bool = True) -> set[fx.Node]:
    """Large values of which there is a chunk at a time once layers are cut; arguments as for `chunk_layers`."""
    with torch_compat.sizes_of(joint.graph):
        regions = [region for region, _ in _regions(joint, num_fwd_outputs, 2, attention=attention)]
        return {node for one in regions for node in one.large(elements(results_of(one.product)[0]) // LAYER)}


def together(regions: list[ChunkedRegion]) -> tuple[ChunkedRegion, ...]:
    """Regions of one place of the program and of the same sizes as one, in order."""
    alike: dict[object, list[ChunkedRegion]] = {}
    for one in regions:
        alike.setdefault((one.what, one.source or one.product, one.whole_bytes, one.chunk_bytes), []).append(one)
    return tuple(replace(first, count=1 + len(others)) for first, *others in alike.values())


def _regions(
    joint: fx.GraphModule, num_fwd_outputs: int, chunks: int, *, attention: bool
) -> Iterator[tuple[Region, ChunkedRegion]]:
    """Layers that can be cut, the largest first, and what people are told of each."""
    taken: set[fx.Node] = set()
    largest: ChunkedRegion | None = None
    roots = find_roots(joint.graph)
    for product, dim in layers(joint, num_fwd_outputs):
        if largest is not None and whole_bytes(product) * SMALLEST < largest.whole_bytes:
            break
        cut = _cut(product, dim, chunks)
        region = None if product in taken or cut.chunks == 1 else _region(joint.graph, product, cut)
        if region is None or (_has_attention(region) and not attention):
            continue
        if taken.isdisjoint(region.cuttings):
            region = with_sums(joint.graph, region, roots, taken)
            taken.update(region.cuttings)
            told = region_in_chunks(product, cut, "layer")
            largest = told if largest is None else largest
            yield region, told
    if not attention:
        return
    # What is small beside a chunk of the layers is no floor.
    least_bytes = 0 if largest is None else largest.chunk_bytes
    large = [one for one in attentions(joint, num_fwd_outputs) if whole_bytes(one) >= least_bytes and one not in taken]
    for region, cut in attention_regions(joint, large, chunks):
        if taken.isdisjoint(region.cuttings):
            taken.update(region.cuttings)
            yield region, region_in_chunks(region.product, cut, "attention")


def _has_attention(region: Region) -> bool:
    return any(node.target in ATTENTION for node in region.cuttings)


def _region(graph: fx.Graph, product: fx.Node, cut: Cut) -> Region | None:
    """The layer of a product whose result is cut so; `None` if there is none, or not all of it can be cut."""
    large = elements(product.meta["val"]) // LAYER
    region = find_region(graph, product, cut, large, MOST)
    # Nothing is gained if its parts are small before any product reads them, as query, key and value are.
    sums = is_stretching(product)
    falls = region is not None and any(
        contracts(node, large, sums=sums) for node in region.cuttings if node is not product
    )
    return region if falls else None


def _written(graph: fx.Graph, regions: list[Region]) -> tuple[fx.Graph, list[Region]] | None:
    """The graph with as many of the regions in chunks as can be together, and these; `None` if none can."""
    try:
        return (in_chunks(graph, *regions), regions) if regions else None
    except NotCuttable:
        pass
    made: tuple[fx.Graph, list[Region]] | None = None
    for region in regions:
        together = [*([] if made is None else made[1]), region]
        try:
            made = in_chunks(graph, *together), together
        except NotCuttable:
            continue
    return made


def _cut(product: fx.Node, dim: int, chunks: int) -> Cut:
    return Cut(dim, dim, even_bounds(shape_of(product)[dim], chunks))
