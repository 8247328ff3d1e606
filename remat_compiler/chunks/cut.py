"""How values and operators are cut into chunks.

    Cut(0, 0, (0, 3, 6, 8))      8 rows in chunks of 3, 3 and 2
    Cut(0, 1, (0, 5, 8))         a tensor (2, 4, ...): its 2 * 4 rows, counted across both dimensions
    Cut(0, 0, (0, c, 2*c, n))    n rows, whatever n is: c is an expression that 2 * c never exceeds n by

A chunk of several dimensions has all its rows in the last of them, and 1 in the others, so a value keeps its rank:
the chunks of the second example are (1, 5, ...) and (1, 3, ...), and dimensions behind keep their numbers.

Sizes are numbers or, where they change from call to call, expressions (`torch_compat.Size`).  How many chunks there are
is decided by the sizes that are planned for; at others some may be empty, which no sum and no row notices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from torch import fx

from remat_compiler.capture.operators import has_tensor
from remat_compiler.torch_compat import Size, divided, expression, floor_divided, least, most, number, product, same


@dataclass(frozen=True, slots=True)
class Cut:
    """A value in slices.

    Attributes:
        first: The first dimension that is cut.
        last: The last one; those from the first on count as one dimension.
        bounds: Where chunks begin along it, and behind them where the last one ends; each has at least one row at the
            sizes that are planned for.
    """

    first: int
    last: int
    bounds: tuple[Size, ...]

    @property
    def chunks(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def dims(self) -> range:
        """The dimensions that are cut."""
        return range(self.first, self.last + 1)

    def length(self, chunk: int) -> Size:
        """Rows of one chunk."""
        return self.bounds[chunk + 1] - self.bounds[chunk]

    def shape(self, whole: Sequence[Size], chunk: int) -> list[Size]:
        """Shape of one chunk of a value of this shape."""
        return [*whole[: self.first], *(1 for _ in self.dims[:-1]), self.length(chunk), *whole[self.last + 1 :]]

    def with_rows_together(self, whole: Sequence[Size]) -> list[Size]:
        """Shape of the value with all its rows in the last dimension that is cut."""
        return [*whole[: self.first], *(1 for _ in self.dims[:-1]), self.bounds[-1], *whole[self.last + 1 :]]


class Partial(Enum):
    """A value that is the sum of what its chunks compute, or what any one of them does."""

    SUM = "sum"
    ANY = "any"


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

    def are_alike(self, one: int, other: int) -> bool:
        """Whether two chunks have the same shapes and numbers."""
        cuts = (cut for cut in (*self.operands, *self.results) if isinstance(cut, Cut))
        return self.changes[one] == self.changes[other] and all(cut.length(one) == cut.length(other) for cut in cuts)


def operands(node: fx.Node) -> list[fx.Node]:
    """Tensors among the arguments, in order, each as often as it is given; numbers are whole for every chunk."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return [one for one in found if has_tensor(one)]


def shape_of(node: fx.Node) -> tuple[Size, ...]:
    """Shape of the node's tensor."""
    return tuple(map(expression, node.meta["val"].shape))


def consists_of(rows: Size, count: Size, granule: Size) -> bool:
    """Whether rows are known to be so many times the granule, as `even_bounds` takes them.

    Their number may be known without that, as of halves that were rounded down.
    """
    return same(product((count, granule)), rows) and divided(rows, granule) is not None


def even_bounds(rows: Size, chunks: int, granule: Size = 1) -> tuple[Size, ...]:
    """Bounds of at most so many chunks of equal size, but for the last one.

    Args:
        rows: Rows of all chunks, a multiple of the granule.
        chunks: At least 1.
        granule: Rows that stay together.
    """
    units = divided(rows, granule)
    assert units is not None
    count, length = _even(units, chunks) if isinstance(units, int) else _even_of_any(units, chunks)
    return (*(chunk * length * granule for chunk in range(count)), rows)


def _even(units: int, chunks: int) -> tuple[int, int]:
    """How many chunks, and the length of all but the last one."""
    length = -(-units // chunks)
    return -(-units // length), length


def _even_of_any(units: Size, chunks: int) -> tuple[int, Size]:
    """The same where only their expression is known: the last one has what is left, which is never less than nothing.

    That is so if the others are a part of all that is rounded down.  The last one is longer than they are, or of
    another part shorter; by the sizes that are planned for, the way is taken whose longest chunk is the shortest.
    """
    total = number(units)
    ways = ((count, part) for part in range(1, chunks + 1) for count in (part, part + 1) if count <= chunks)
    longest = ((max(total // part, total - (count - 1) * (total // part)), count, part) for count, part in ways)
    _, count, part = min(longest)
    return count, floor_divided(units, part)


def seen_through(old: Sequence[Size], new: Sequence[Size], cut: Cut) -> Cut | None:
    """The cut of a value after its elements were counted in another shape; `None` if no dimensions hold the chunks.

    Args:
        old: Shape that is cut.
        new: Another shape of as many elements.
        cut: How `old` is cut.
    """
    outer, inner = product(old[: cut.first]), product(old[cut.last + 1 :])
    for first in range(len(new)):
        # Dimensions of one element, which have no rows to cut, are passed by.
        if not same(product(new[:first]), outer) or new[first] == 1:
            continue
        for last in range(first, len(new)):
            behind = product(new[last + 1 :])
            bounds = [divided(bound * inner, behind) for bound in cut.bounds]
            known = [bound for bound in bounds if bound is not None]
            if len(known) == len(bounds):
                return Cut(first, last, tuple(known))
    return None


def shifted(cut: Cut, by: Size, rows: Size) -> Cut | None:
    """The cut of a dimension of so many rows, whose row 0 is row `by` of that which is cut.

    With `by` below 0, rows before and behind belong to the first and to the last chunk.
    """
    inside = [least(most(bound - by, 0), rows) for bound in cut.bounds[1:-1]]
    bounds = (0, *inside, rows)
    # Chunks of no rows would be nothing but more operators.
    return Cut(cut.first, cut.last, bounds) if all(number(a) < number(b) for a, b in pairwise(bounds)) else None
