"""The one question that is asked of the rules: how is this operator cut, if that operand or its result is cut so.

Most operators answer by their `axes`.  Those that count elements in another shape, or move rows along the dimension
that is cut, have rules of their own here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from remat_compiler.chunks.attention import ATTENTION, GRADIENTS, attention_cutting
from remat_compiler.chunks.axes import axes_of
from remat_compiler.chunks.axis import Axis, argument, at, is_plain, results_of
from remat_compiler.chunks.cut import Cut, Cutting, Partial, Placement, operands, seen_through, shape_of, shifted
from remat_compiler.chunks.images import IMAGE_COUNTS, INPUT_SHAPES, NEEDING_IMAGES
from remat_compiler.torch_compat import Size, expression, most, same

_aten = torch.ops.aten
VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default})
"""Operators that count the elements in another shape."""
_SHAPES: dict[Any, int] = {
    **dict.fromkeys(VIEWS, 1),
    **dict.fromkeys((_aten.full.default, _aten.zeros.default, _aten.ones.default), 0),
    **dict.fromkeys((_aten.new_full.default, _aten.new_zeros.default, _aten.new_ones.default), 1),
    **dict.fromkeys((_aten.expand.default, _aten.slice_backward.default, _aten.select_backward.default), 1),
    **INPUT_SHAPES,
}
"""Operators that are told the shape of their result, and the position of that argument."""


def told(node: fx.Node, shape: Sequence[Size]) -> dict[int, Any]:
    """The positional arguments that tell an operator of which shape its first result is, if that is this one."""
    if node.target in IMAGE_COUNTS:
        return {IMAGE_COUNTS[node.target]: shape[0]}
    position = _SHAPES.get(node.target)
    return {} if position is None else {position: list(shape)}


@dataclass(frozen=True, slots=True)
class _Ranged:
    """An operator on a range of rows.

    Attributes:
        dimension: Position of the argument that names their dimension; start, end and step of the range follow it.
        whole: The operands that have all rows, `None` for the result; the others have those of the range.
    """

    dimension: int
    whole: tuple[int | None, ...]

    def holder(self, node: fx.Node, *, is_whole: bool) -> fx.Node:
        """The operand or result that has all rows, or those of the range."""
        places = (place for place in (None, *range(len(operands(node)))) if (place in self.whole) is is_whole)
        place = next(places)
        return node if place is None else operands(node)[place]


_RANGES: dict[Any, _Ranged] = {
    _aten.slice.Tensor: _Ranged(1, (0,)),
    _aten.slice_backward.default: _Ranged(2, (None,)),
    _aten.slice_scatter.default: _Ranged(2, (0, None)),
}


def cutting(node: fx.Node, operand: int | None, cut: Cut) -> Cutting | None:
    """How an operator is cut.

    Args:
        node: The operator.
        operand: Which of its operands is cut; `None` for its result.
        cut: How that is cut.

    Returns:
        `None` if its chunks would not be independent, or if nothing is known of it.
    """
    if node.target in VIEWS and is_plain(node) and is_plain(operands(node)[0]):
        return _view(node, operand, cut)
    rows = _RANGES.get(node.target)
    if rows is not None and is_plain(node) and at(argument(node, rows.dimension), len(shape_of(node))) in cut.dims:
        return _part(node, operand, cut, rows) if cut.first == cut.last else None
    if node.target in ATTENTION or node.target in GRADIENTS:
        return attention_cutting(node, operand, cut)
    if node.target in NEEDING_IMAGES and not all(isinstance(bound, int) for bound in cut.bounds):
        return None
    return _by_axes(node, axes_of(node), operand, cut)


def _by_axes(node: fx.Node, axes: list[Axis], operand: int | None, cut: Cut) -> Cutting | None:
    chosen = []
    for dim in cut.dims:
        axis = next((a for a in axes if (a.results[0] if operand is None else a.operands[operand]) == dim), None)
        if axis is None:
            return None
        chosen.append(axis)
    given = [_placed([axis.operands[i] for axis in chosen], cut) for i in range(len(operands(node)))]
    made = [_placed([axis.results[i] for axis in chosen], cut) for i in range(len(results_of(node)))]
    known = [one for one in made if isinstance(one, (Cut, Partial))]
    if any(one is _NEITHER for one in given) or len(known) < len(made):
        return None
    return _cutting(node, [one if isinstance(one, Cut) else None for one in given], known)


_NEITHER = object()
"""Dimensions that are not cut together."""


def _placed(dims: list[Any], cut: Cut) -> object:
    """What becomes of an operand or result with these dimensions for those that are cut."""
    first = dims[0]
    if all(dim is first for dim in dims) and (first is None or isinstance(first, Partial)):
        return first
    apart = any(dim is None or isinstance(dim, Partial) for dim in dims)
    if apart or dims != list(range(first, first + len(dims))):
        return _NEITHER
    return Cut(first, dims[-1], cut.bounds)


def _cutting(
    node: fx.Node, given: list[Cut | None], made: list[Placement], changes: list[dict[int, Any]] | None = None
) -> Cutting:
    """The cutting, with the shapes that the operator is told."""
    cuts = [one for one in (*given, *made) if isinstance(one, Cut)]
    differing: list[dict[int, Any]] = changes or [{} for _ in range(cuts[0].chunks)]
    # A gradient that is not wanted has no shape; there are as many images of what it would be computed from.
    first, value = (made[0], results_of(node)[0]) if results_of(node)[0] is not None else (given[0], None)
    if isinstance(first, Cut):
        shape = shape_of(operands(node)[0]) if value is None else tuple(map(expression, value.shape))
        for chunk, change in enumerate(differing):
            change.update(told(node, first.shape(shape, chunk)))
    frozen: tuple[Mapping[int, Any], ...] = tuple(differing)
    return Cutting(tuple(given), tuple(made), frozen)


def _view(node: fx.Node, operand: int | None, cut: Cut) -> Cutting | None:
    before, after = shape_of(operands(node)[0]), shape_of(node)
    if operand is None:
        source = seen_through(after, before, cut)
        return None if source is None else _cutting(node, [source], [cut])
    result = seen_through(before, after, cut)
    return None if result is None else _cutting(node, [cut], [result])


def _part(node: fx.Node, operand: int | None, cut: Cut, rows: _Ranged) -> Cutting | None:
    """An operator on a range of the rows that are cut, which reads fewer rows than there are, or makes more."""
    found = range_of(node)
    if found is None:
        return None
    start, part, whole = found.start, found.length, found.whole[cut.first]
    outer = cut if operand in rows.whole else shifted(cut, -start, whole)
    inner = shifted(cut, start, part) if operand in rows.whole else cut
    if outer is None or inner is None:
        return None
    changes = []
    for (begin, _), (first, last) in zip(pairwise(outer.bounds), pairwise(inner.bounds)):
        # The chunk's rows of the range, counted in the chunk of the whole.
        changes.append({rows.dimension + 1: first + start - begin, rows.dimension + 2: last + start - begin})
    # Torch takes the length of a range between expressions for one that depends on data, but not that of all rows.
    if not all(isinstance(bound, int) for change in changes for bound in change.values()):
        if start != 0 or whole != part:
            return None
        changes = [{rows.dimension + 1: 0, rows.dimension + 2: sys.maxsize} for _ in changes]
    reads = [outer if i in rows.whole else inner for i in range(len(operands(node)))]
    return _cutting(node, list(reads), [outer if None in rows.whole else inner], changes)


@dataclass(frozen=True, slots=True)
class Range:
    """Rows one behind the other.

    Attributes:
        dimension: Their dimension.
        start: The first one.
        length: How many they are.
        whole: The shape with all rows.
    """

    dimension: int
    start: Size
    length: Size
    whole: tuple[Size, ...]

    def is_same(self, other: Range) -> bool:
        """Whether both are known to be the same rows of values of one shape."""
        if self.dimension != other.dimension or len(self.whole) != len(other.whole):
            return False
        sizes = zip((self.start, self.length, *self.whole), (other.start, other.length, *other.whole))
        return all(same(one, another) for one, another in sizes)


def range_of(node: fx.Node) -> Range | None:
    """The rows that an operator takes or puts back; `None` if it is no such operator, or if they are not known."""
    rows = _RANGES.get(node.target)
    if rows is None or not is_plain(node) or not all(map(is_plain, operands(node))):
        return None
    whole, part = (shape_of(rows.holder(node, is_whole=one)) for one in (True, False))
    dimension = at(argument(node, rows.dimension), len(whole))
    start = _first_row(argument(node, rows.dimension + 1), whole[dimension])
    if start is None or argument(node, rows.dimension + 3) != 1:
        return None
    return Range(dimension, start, part[dimension], whole)


def _first_row(start: Any, rows: Size) -> Size | None:
    """The first row of a range of so many; `None` if that is not known."""
    if isinstance(start, fx.Node):
        start = expression(start.meta["val"])
    if start is None:
        return 0
    if isinstance(start, int):
        return most(rows + start, 0) if start < 0 else start
    return start if start.is_nonnegative else None
