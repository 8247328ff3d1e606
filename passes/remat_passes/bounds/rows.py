"""A linear program over variables between 0 and 1, kept as flat lists.

Linked instants give tens of thousands of rows.  As objects of a modelling library they take longer to build than to
solve; as lists of numbers they go to a solver at once (`remat_passes.bounds.solved`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MICROSECOND, MEGABYTE = 1e3, 1e6
"""Units of programs, in ns and bytes, which keep coefficients within the range of the solvers' tolerances."""


class Affine(NamedTuple):
    """A constant and terms of variable and coefficient; without terms it is a plain number."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    @property
    def varies(self) -> bool:
        """Whether there is anything to decide."""
        return bool(self.terms)

    def minus(self, other: Affine) -> Affine:
        """The difference."""
        if self.terms == other.terms:
            return Affine(self.constant - other.constant)
        return Affine(self.constant - other.constant, self.terms + tuple((v, -c) for v, c in other.terms))


ZERO, ONE = Affine(0), Affine(1)


class Rows:
    """Minimise ``offset + cost @ x`` where ``A @ x >= right`` and each x lies between 0 and its `upper`.

    Attributes:
        offset: Constant of the objective.
        cost: Coefficient of each variable in the objective.
        upper: Upper bound of each variable.
        whole: Whether each variable is a whole number.
        right: Right side of each row.
        start: Row i is ``index[start[i] : start[i + 1]]`` with the coefficients `value` there.
        index: Variables of the rows.
        value: Their coefficients.
        impossible: Whether some row can hold for no values at all.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self.right: list[float] = []
        self.start: list[int] = [0]
        self.index: list[int] = []
        self.value: list[float] = []
        self.impossible = False

    def variable(self, *, cost: float = 0.0, upper: float = 1.0, whole: bool = True) -> Affine:
        """A new variable."""
        self.cost.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return Affine(0, ((len(self.cost) - 1, 1),))

    def charge(self, term: Affine, cost: float) -> None:
        """Add ``cost * term`` to the objective."""
        self.offset += term.constant * cost
        for variable, coefficient in term.terms:
            self.cost[variable] += coefficient * cost

    def at_least(self, left: Iterable[Affine], right: Affine) -> None:
        """The row ``sum of left >= right``, unless it holds in any case."""
        self.weighed([*((term, 1.0) for term in left), (right, -1.0)], 0.0)

    def weighed(self, terms: Iterable[tuple[Affine, float]], right: float) -> None:
        """The row ``sum of weight * term >= right``, unless it holds in any case."""
        row: dict[int, float] = {}
        for term, weight in terms:
            right -= term.constant * weight
            for variable, coefficient in term.terms:
                row[variable] = row.get(variable, 0.0) + coefficient * weight
        if sum(c * self.upper[v] for v, c in row.items() if c < 0) >= right:
            return
        if not row:
            self.impossible = True
        self.index.extend(row.keys())
        self.value.extend(row.values())
        self.start.append(len(self.index))
        self.right.append(right)
