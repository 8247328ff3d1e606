"""How values and operators are cut into chunks.

    Cut(0, 0, (0, 3, 6, 8))      8 rows in chunks of 3, 3 and 2
    Cut(0, 1, (0, 5, 8))         a tensor (2, 4, ...): its 2 * 4 rows, counted across both dimensions

A chunk of several dimensions has all its rows in the last of them, and 1 in the others, so a value keeps its rank:
the chunks of the second example are (1, 5, ...) and (1, 3, ...), and dimensions behind keep their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from torch import fx


@dataclass(frozen=True, slots=True)
class Cut:
    """A value in slices.

    Attributes:
        first: The first dimension that is cut.
        last: The last one; those from the first on count as one dimension.
        bounds: Where chunks begin along it, and behind them where the last one ends; each has at least one row.
    """

    first: int
    last: int
    bounds: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def dims(self) -> range:
        """The dimensions that are cut."""
        return range(self.first, self.last + 1)

    def shape(self, whole: Sequence[int], chunk: int) -> list[int]:
        """Shape of one chunk of a value of this shape."""
        rows = self.bounds[chunk + 1] - self.bounds[chunk]
        return [*whole[: self.first], *(1 for _ in self.dims[:-1]), rows, *whole[self.last + 1 :]]

    def with_rows_together(self, whole: Sequence[int]) -> list[int]:
        """Shape of the value with all its rows in the last dimension that is cut."""
        return [*whole[: self.first], *(1 for _ in self.dims[:-1]), self.bounds[-1], *whole[self.last + 1 :]]


class Partial(Enum):
    """A value that is the sum of what its chunks compute."""

    SUM = "sum"


Placement = Cut | Partial


@dataclass(frozen=True, slots=True)
class Cutting:
    """One operator in chunks.

    Attributes:
        operands: How each operand is cut; `None` if every chunk reads all of it.
        results: What becomes of each result.
        changes: For each chunk, the positional arguments that differ in it.
    """

    operands: tuple[Cut | None, ...]
    results: tuple[Placement, ...]
    changes: tuple[Mapping[int, Any], ...]


def operands(node: fx.Node) -> list[fx.Node]:
    """Nodes among the arguments, in order, each as often as it is given."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of the node's tensor."""
    return tuple(node.meta["val"].shape)


def even_bounds(rows: int, chunks: int, granule: int = 1) -> tuple[int, ...]:
    """Bounds of at most so many chunks of equal size, but for the last one.

    Args:
        rows: Rows of all chunks, a multiple of the granule.
        chunks: At least 1.
        granule: Rows that stay together.
    """
    step = math.ceil(rows / granule / chunks) * granule
    return (*range(0, rows, step), rows)


def seen_through(old: Sequence[int], new: Sequence[int], cut: Cut) -> Cut | None:
    """The cut of a value after its elements were counted in another shape; `None` if no dimensions hold the chunks.

    Args:
        old: Shape that is cut.
        new: Another shape of as many elements.
        cut: How `old` is cut.
    """
    outer, inner = math.prod(old[: cut.first]), math.prod(old[cut.last + 1 :])
    for first in range(len(new)):
        # Dimensions of one element, which have no rows to cut, are passed by.
        if math.prod(new[:first]) != outer or new[first] == 1:
            continue
        for last in range(first, len(new)):
            behind = math.prod(new[last + 1 :])
            if behind and all(bound * inner % behind == 0 for bound in cut.bounds):
                return Cut(first, last, tuple(bound * inner // behind for bound in cut.bounds))
    return None


def shifted(cut: Cut, by: int, rows: int) -> Cut | None:
    """The cut of a dimension of so many rows, whose row 0 is row `by` of that which is cut.

    With `by` below 0, rows before and behind belong to the first and to the last chunk.
    """
    inside = [min(max(bound - by, 0), rows) for bound in cut.bounds[1:-1]]
    bounds = (0, *inside, rows)
    # An operator on no rows at all may be an error, and has no mean.
    return Cut(cut.first, cut.last, bounds) if all(a < b for a, b in pairwise(bounds)) else None
