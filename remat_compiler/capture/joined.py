"""Values that are put together of chunks, each of which Inductor computes in its place in the whole.

    chunk 0, mm ─► [■ · · ·]       the whole is allocated for the first chunk, and takes nothing more
    chunk 1, mm ─► [■ ■ · ·]       each of the others takes the memory over from the one before it
    together       [■ ■ ■ ■]       at the end it is there without a copy

So all chunks of one whole are computed one behind the other, or none of them again: those that were kept of another one
would hold all of that, and be copied.

Inductor does so by `ConcatKernel` in `torch/_inductor/ir.py`, for what it may lay out as it likes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import fx

from remat_compiler.capture.operators import NodeClass
from remat_compiler.capture.storages import readers
from remat_compiler.ir.graph import Phase

JOINED = "remat_joined"
"""What nodes have in `meta` that put chunks of one value together."""

_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default})
"""Kernels that Inductor has write to where it says."""


def wholes(
    classes: Mapping[fx.Node, NodeClass],
    roots: dict[fx.Node, fx.Node],
    phases: Mapping[fx.Node, Phase],
    in_memory: Collection[fx.Node],
) -> dict[fx.Node, fx.Node]:
    """For each chunk that is computed in its place, the node that puts all of them together.

    Args:
        classes: All nodes of a graph, in order, and what they are.
        roots: For each node with a tensor, the one that owns its memory.
        phases: The part of the step that each belongs to.
        in_memory: Nodes that have memory of their own.
    """
    found: dict[fx.Node, fx.Node] = {}
    for whole in classes:
        if JOINED not in whole.meta or whole.target is not _aten.cat.default:
            continue
        # What may run in either part may be saved chunk by chunk, and is put together in the backward then.
        if phases[whole] is Phase.TANGENT_FREE:
            continue
        chunks = whole.all_input_nodes
        near = all(phases[one] is phases[whole] and one not in in_memory for one in chunks)
        if near and all(_is_in_place(one, whole, classes, roots) for one in chunks):
            found.update(dict.fromkeys(chunks, whole))
    return found


def filled(chunks: Iterable[fx.Node], wholes: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each of the chunks, in order, but the first of each whole, and for the wholes: the chunk before it."""
    last: dict[fx.Node, fx.Node] = {}
    before: dict[fx.Node, fx.Node] = {}
    for chunk in chunks:
        whole = wholes[chunk]
        if whole in last:
            before[chunk] = last[whole]
        last[whole] = chunk
    return before | last


def _is_in_place(
    chunk: fx.Node, whole: fx.Node, classes: Mapping[fx.Node, NodeClass], roots: dict[fx.Node, fx.Node]
) -> bool:
    """Whether a chunk has no memory but its place in the whole."""
    computed = chunk.target in _PRODUCTS or classes.get(chunk) in (NodeClass.POINTWISE, NodeClass.REDUCTION)
    return computed and roots.get(chunk) is chunk and readers(chunk, roots) == [whole]
