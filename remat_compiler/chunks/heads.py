"""Attention by one operator, some heads or sequences at a time, with all that is between the products around it.

    q, k, v ─► rotated, stretched to all heads ─► attention ─► o       products before it are cut, too, if they can be;
    dq, dk, dv ◄─ summed up, rotated back ◄─ its gradient ◄─ do        those behind it read the whole

Nothing of it is larger than what is between layers, but much of it is there at once: three values and their gradients,
what they were before, and the workspace of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.storages import find_roots
from remat_compiler.chunks.amplifiers import LAYER
from remat_compiler.chunks.attention import ATTENTION, BATCH, HEADS
from remat_compiler.chunks.axis import is_plain, is_tuple, may_be_cut, results_of
from remat_compiler.chunks.cut import Cut, consists_of, even_bounds, operands, shape_of
from remat_compiler.chunks.region import MOST, Region, elements, find_region, whole_bytes
from remat_compiler.chunks.rewriting import is_in_chunks
from remat_compiler.ir.graph import Phase
from remat_compiler.torch_compat import Size, divided, expression, number


def attentions(joint: fx.GraphModule, num_fwd_outputs: int) -> list[fx.Node]:
    """Attention by one operator in the forward that is whole; the largest first.

    Args:
        joint: A joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
    """
    phases = find_phases(joint.graph, torch_compat.joint_outputs(joint, num_fwd_outputs)[0])
    forward = (node for node, phase in phases.items() if phase is Phase.FORWARD and node.target in ATTENTION)
    found = [node for node in forward if may_be_cut(node) and not is_in_chunks(node)]
    return sorted(found, key=whole_bytes, reverse=True)


def attention_regions(joint: fx.GraphModule, found: list[fx.Node], chunks: int) -> Iterator[tuple[Region, Cut]]:
    """What is cut with each of these in at most so many chunks, and how it is; without those that gain nothing."""
    if not found:
        return
    roots, stretched = find_roots(joint.graph), _stretched(joint.graph)
    for attention in found:
        large, best_bytes, best = elements(results_of(attention)[0]) // LAYER, 0, None
        for cut in _cuts(attention, stretched, chunks):
            region = find_region(joint.graph, attention, cut, large, MOST, up_to_products=True)
            spared_bytes = 0 if region is None else _spared_bytes(region, large, roots)
            if region is not None and spared_bytes > best_bytes:
                best_bytes, best = spared_bytes, (region, cut)
        if best is not None:
            yield best


def _stretched(graph: fx.Graph) -> frozenset[tuple[Size, Size]]:
    """For values of five dimensions, the second and third: where keys are stretched, these and the heads of each."""
    shapes = (shape_of(node) for node in graph.nodes if is_plain(node) and not is_tuple(node))
    return frozenset((shape[1], shape[2]) for shape in shapes if len(shape) == 5)


def _cuts(attention: fx.Node, stretched: frozenset[tuple[Size, Size]], chunks: int) -> list[Cut]:
    """Ways to cut an attention: by heads, and by sequences."""
    batch, heads = map(expression, results_of(attention)[0].shape[:2])
    # Heads that share a key may have to stay together, also if it is stretched to them before.
    sharing = divided(heads, shape_of(operands(attention)[1])[HEADS])
    together = {n for keys, n in stretched if consists_of(heads, keys, n)} | {1, sharing or 1}
    ways = [(HEADS, heads, granule) for granule in sorted(together, key=lambda one: (number(one), str(one)))]
    cuts = [Cut(dim, dim, even_bounds(size, chunks, granule)) for dim, size, granule in [*ways, (BATCH, batch, 1)]]
    return [cut for cut in cuts if cut.chunks > 1]


def _spared_bytes(region: Region, large: int, roots: Mapping[fx.Node, fx.Node]) -> int:
    """Bytes of large values that are not there at once; 0 if those that are put together are more."""
    leaving = {roots[node] for node in region.leaving() if elements(node.meta["val"]) >= large}
    within = {roots[node] for node in region.large(large)} - leaving
    within_bytes, leaving_bytes = (sum(map(whole_bytes, one & region.cuttings.keys())) for one in (within, leaving))
    return within_bytes * (region.chunks - 1) // region.chunks if within_bytes >= leaving_bytes else 0
