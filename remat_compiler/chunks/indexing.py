"""How operators are cut that take elements of a value by indices, or add them up at such.

    y = x[edges]                         row i of y: row i of edges, and all of x
    zeros.index_add(0, edges, y)         parts of a sum: a row of y with its row of edges, and all of the zeros

So what a few nodes give to many edges, and get of them, is cut by edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from remat_compiler.chunks.axis import UNKNOWN, Axis, aligned, argument, at, is_zero
from remat_compiler.chunks.cut import Partial, operands, shape_of
from remat_compiler.torch_compat import Size, same

_aten = torch.ops.aten
GATHERS = frozenset({_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_select.default})
"""Operators that take elements of a value, some of them several times: of small images, or of nodes for their edges."""
SCATTERS = frozenset(
    {_aten.index_put.default, _aten._unsafe_index_put.default, _aten.index_add.default, _aten.scatter_add.default}
)
"""Operators that add up what comes of each element."""


def _looked_up(node: fx.Node) -> list[Axis]:
    """``embedding(table, indices)``."""
    return [Axis((dim,), (None, dim)) for dim in range(len(shape_of(operands(node)[1])))]


def _looked_up_backward(node: fx.Node) -> list[Axis]:
    """``embedding_dense_backward(gradient, indices, words, padding, by frequency)``."""
    if argument(node, 4):
        return []
    return [Axis((Partial.SUM,), (dim, dim)) for dim in range(len(shape_of(operands(node)[1])))]


def _indexed(node: fx.Node) -> list[Axis]:
    """``index(x, indices)``: dimensions in front of all indices, and those of the indices."""
    places = _places(node)
    if places is None:
        return []
    front, indices, _ = places
    before = [Axis((dim,), (dim, *[None] * len(indices))) for dim in range(front)]
    return [*before, *(Axis((dim,), (None, *reads)) for dim, reads in _of_indices(shape_of(node), front, indices))]


def _put(node: fx.Node) -> list[Axis]:
    """``index_put(x, indices, values, accumulate)``: likewise; into zeros, of those of the indices, parts of a sum."""
    places = _places(node)
    if places is None:
        return []
    front, indices, rank = places
    base, *_, given = operands(node)
    shape, values = shape_of(base), shape_of(given)
    # Values of fewer dimensions are spread over the places.
    if len(values) != len(shape) - len(indices) + rank:
        return []
    alike = (dim for dim in range(front) if same(values[dim], shape[dim]))
    found = [Axis((dim,), (dim, *[None] * len(indices), dim)) for dim in alike]
    if argument(node, 3) and is_zero(base):
        found += [Axis((Partial.SUM,), (None, *reads, dim)) for dim, reads in _of_indices(values, front, indices)]
    return found


def _places(node: fx.Node) -> tuple[int, list[fx.Node], int] | None:
    """The first dimension that is indexed, the indices, and of how many dimensions they are together."""
    given = argument(node, 1)
    indices = [one for one in given if one is not None]
    front = next((dim for dim, one in enumerate(given) if one is not None), 0)
    # Apart, indices put their dimension in front of all.
    if list(given[front : front + len(indices)]) != indices:
        return None
    return front, indices, max(len(shape_of(one)) for one in indices)


def _of_indices(
    shape: Sequence[Size], front: int, indices: Sequence[fx.Node]
) -> list[tuple[int, tuple[int | None, ...]]]:
    """Dimensions of a value of this shape that come of the indices, and which of each index they are."""
    rank, found = max(len(shape_of(one)) for one in indices), []
    for dim in range(rank):
        reads = tuple(aligned(dim, shape[front : front + rank], shape_of(one)) for one in indices)
        if UNKNOWN not in reads and any(one is not None for one in reads):
            found.append((front + dim, reads))
    return found


def _selected(node: fx.Node) -> list[Axis]:
    """``index_select(x, dim, indices)``."""
    rank, indices = len(shape_of(node)), shape_of(operands(node)[1])
    place = at(argument(node, 1), rank)
    return [Axis((dim,), (None, 0) if dim == place else (dim, None)) for dim in range(rank) if indices or dim != place]


def _gathered(node: fx.Node) -> list[Axis]:
    """``gather(x, dim, indices)``, whose result has the shape of the indices."""
    shape, indices = map(shape_of, operands(node))
    place = at(argument(node, 1), len(shape))
    # Indices of fewer rows than there are have no part of each chunk.
    alike = [dim for dim in range(len(shape)) if dim != place and same(shape[dim], indices[dim])]
    return [Axis((dim,), (dim, dim)) for dim in alike] + [Axis((place,), (None, place)) for _ in indices[:1]]


def _added(node: fx.Node) -> list[Axis]:
    """``index_add(x, dim, indices, values)``, and ``scatter_add(x, dim, indices, values)`` of an index for each."""
    base, indices, values = operands(node)
    shapes, place = [shape_of(base), shape_of(values)], at(argument(node, 1), len(shape_of(base)))
    each = node.target is _aten.scatter_add.default
    if each:
        shapes.append(shape_of(indices))
    if len({len(shape) for shape in shapes}) != 1:
        return []
    others = [dim for dim in range(len(shapes[0])) if dim != place]
    alike = [dim for dim in others if all(same(shape[dim], shapes[0][dim]) for shape in shapes)]
    found = [Axis((dim,), (dim, dim if each else None, dim)) for dim in alike]
    if is_zero(base) and (not each or same(shapes[1][place], shapes[2][place])):
        found.append(Axis((Partial.SUM,), (None, place if each else 0, place)))
    return found


INDEXING: dict[Any, Callable[[fx.Node], Sequence[Axis]]] = {
    _aten.embedding.default: _looked_up,
    _aten.embedding_dense_backward.default: _looked_up_backward,
    _aten.index.Tensor: _indexed,
    _aten._unsafe_index.Tensor: _indexed,
    _aten.index_select.default: _selected,
    _aten.index_put.default: _put,
    _aten._unsafe_index_put.default: _put,
    _aten.gather.default: _gathered,
    _aten.index_add.default: _added,
    _aten.scatter_add.default: _added,
}
"""The rules of this module."""
