"""The peak of a compiled step as a function of its input sizes, exact to the byte and evaluated in microseconds.

The bytes alive at each moment of the step are a polynomial in the sizes (or in whole expressions of them, such as
``(s0 + 6) // 7`` for padding).  With coefficients for every monomial a moment is a row of integers; monomials are not
negative, so a row that another one exceeds in every column is never the peak.  The rows that remain, a handful, are
the peak:

    peak(s0) = max(96·s0 + 4·s0² + 2048,  160·s0 + 512)  + operator workspace
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from remat_compiler.costs.op_call import OpCall

NO_WORKSPACE = -1
"""Position of the operator of a moment without one that may have a workspace."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes alive at a moment that may be the peak.

    Attributes:
        coefficients: Bytes for one unit of each monomial.
        call: Position in `PeakFormula.calls` of the operator that runs at that moment, else `NO_WORKSPACE`.
    """

    coefficients: tuple[int, ...]
    call: int


@dataclass(frozen=True, slots=True, eq=False)
class PeakFormula:
    """The peak of a step for any sizes of its inputs.

    Attributes:
        symbols: Names of the sizes.
        monomials: Products of sizes (and of expressions over them), as Python expressions over `symbols`.
        rows: The moments that may be the peak.
        conditions: Conditions under which the formula holds, as Python expressions over `symbols`.
        calls: Operators that may have a workspace, with symbolic sizes.
        bind_sizes: Context in which the sizes of `calls` stand for the numbers given by symbol.
        held: Bytes alive between forward and backward, as coefficients of the monomials.
        left: Bytes alive after the step, as coefficients of the monomials.
    """

    symbols: tuple[str, ...]
    monomials: tuple[str, ...]
    rows: tuple[Row, ...]
    conditions: tuple[str, ...]
    calls: tuple[OpCall, ...]
    bind_sizes: Callable[[Mapping[str, int]], AbstractContextManager[None]]
    held: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    def calls_at(self, sizes: Sequence[int], which: Iterable[int]) -> list[OpCall]:
        """The calls at the positions `which` of `calls`, at these sizes (in the order of `symbols`)."""
        with self.bind_sizes(dict(zip(self.symbols, sizes))):
            return [self.calls[i].concrete() for i in which]

    def only(self, calls: Sequence[int]) -> PeakFormula:
        """The formula if only the operators at these positions of `calls` have a workspace; it has fewer rows."""
        place = {call: i for i, call in enumerate(calls)}
        # Rows of dropped operators lose what kept them apart, so others may dominate them.
        rows = {Row(row.coefficients, place.get(row.call, NO_WORKSPACE)) for row in self.rows}
        return replace(self, rows=_undominated(rows), calls=tuple(self.calls[i] for i in calls))

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether the formula is valid at these sizes (in the order of `symbols`)."""
        return bool(condition_on(self.symbols, self.conditions)(*sizes))

    def live_bytes(self, sizes: Sequence[int]) -> int:
        """The peak without operator workspaces (sizes in the order of `symbols`)."""
        return int(_evaluator(self.symbols, self.monomials, self.rows)(*sizes)[0])

    def boundary_and_final_bytes(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Bytes alive between forward and backward, and after the step (sizes in the order of `symbols`)."""
        rows = (Row(self.held, NO_WORKSPACE), Row(self.left, NO_WORKSPACE))
        held, left = _evaluator(self.symbols, self.monomials, rows)(*sizes)[1]
        return held, left

    def peak_bytes(self, sizes: Sequence[int], workspace_bytes: Callable[[int], int]) -> int:
        """The peak at these sizes.

        Args:
            sizes: In the order of `symbols`.
            workspace_bytes: Gives the workspace, at these sizes, of the operator at a position in `calls`.
        """
        heights = _evaluator(self.symbols, self.monomials, self.rows)(*sizes)[1]
        return max(
            (height + (workspace_bytes(row.call) if row.call >= 0 else 0) for height, row in zip(heights, self.rows)),
            default=0,
        )


def peak_formula_of(
    symbols: Sequence[str],
    lives: Sequence[tuple[int, int | None, Mapping[str, int]]],
    moment_calls: Sequence[int],
    conditions: Sequence[str],
    calls: Sequence[OpCall],
    bind_sizes: Callable[[Mapping[str, int]], AbstractContextManager[None]],
    held: Sequence[Mapping[str, int]] = (),
    left: Sequence[Mapping[str, int]] = (),
) -> PeakFormula:
    """The formula of a step.

    Args:
        symbols: Names of the sizes.
        lives: For each storage the moment that makes it, the first at which it is gone (`None`: never), and its bytes
            by monomial.
        moment_calls: For each moment the position in `calls` of the operator that runs then, else `NO_WORKSPACE`.
        conditions: Conditions under which the formula holds.
        calls: Operators that may have a workspace.
        bind_sizes: See `PeakFormula`.
        held: Bytes by monomial of each storage that is alive between forward and backward.
        left: Bytes by monomial of each storage that is alive after the step.
    """
    # Sorted, so that equal steps give equal formulas, whose evaluators are shared.
    monomials = sorted({monomial for _, _, size in lives for monomial in size})
    column = {monomial: i for i, monomial in enumerate(monomials)}
    # Differences from moment to moment; the row after the last takes what dies after the last moment.
    changes = np.zeros((len(moment_calls) + 1, len(monomials)), dtype=np.int64)
    for made, freed, size in lives:
        for monomial, count in size.items():
            changes[min(made, len(moment_calls)), column[monomial]] += count
            if freed is not None:
                changes[freed, column[monomial]] -= count
    heights = np.cumsum(changes, axis=0)[: len(moment_calls)]
    distinct = {Row(tuple(map(int, height)), call) for height, call in zip(heights, moment_calls)}
    rows = _undominated(distinct)
    # The workspaces of operators whose rows are dropped never matter, so they need no measuring.
    used = sorted({row.call for row in rows if row.call >= 0})
    place = {call: i for i, call in enumerate(used)}
    return PeakFormula(
        tuple(symbols),
        tuple(monomials),
        tuple(Row(row.coefficients, place.get(row.call, NO_WORKSPACE)) for row in rows),
        tuple(dict.fromkeys(conditions)),
        tuple(calls[i] for i in used),
        bind_sizes,
        tuple(sum(size.get(monomial, 0) for size in held) for monomial in monomials),
        tuple(sum(size.get(monomial, 0) for size in left) for monomial in monomials),
    )


def bytes_by_monomial(
    symbols: Sequence[str], sizes_by_monomial: Sequence[Mapping[str, int]], sizes: Sequence[int]
) -> tuple[int, ...]:
    """Several byte counts, each given by monomial, at these sizes (in the order of `symbols`)."""
    monomials = sorted({monomial for size in sizes_by_monomial for monomial in size})
    values = _evaluator(
        tuple(symbols),
        tuple(monomials),
        tuple(Row(tuple(int(i == k) for i in range(len(monomials))), NO_WORKSPACE) for k in range(len(monomials))),
    )(*sizes)[1]
    value = dict(zip(monomials, values))
    return tuple(sum(count * value[monomial] for monomial, count in size.items()) for size in sizes_by_monomial)


def _undominated(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows that no other row exceeds in every monomial; a row with an operator gives way to the same operator only."""
    kept: list[Row] = []
    # A row has the larger sum of the two if it dominates another, so one pass over falling sums sees it first.  Among
    # equal coefficients, rows with an operator come first: they dominate the one without.
    ordered = sorted(rows, key=lambda row: (-sum(row.coefficients), row.coefficients, -row.call))
    table = np.zeros((0, len(ordered[0].coefficients) if ordered else 0), dtype=np.int64)
    calls = np.zeros(0, dtype=np.int64)
    for row in ordered:
        height = np.array(row.coefficients, dtype=np.int64)
        above = (table >= height).all(axis=1)
        # A workspace is at least 0 and unknown here: it may lift this row over another operator's, or over none's.
        if row.call != NO_WORKSPACE:
            above &= calls == row.call
        if not above.any():
            kept.append(row)
            table, calls = np.vstack([table, height]), np.append(calls, row.call)
    return tuple(kept)


@cache
def _evaluator(
    symbols: tuple[str, ...], monomials: tuple[str, ...], rows: tuple[Row, ...]
) -> Callable[..., tuple[int, tuple[int, ...]]]:
    """Largest height and all heights of the rows, as one function of the sizes."""
    # Generated source, since a training step waits for the value; each monomial is computed once.
    names = [f"m{i}" for i in range(len(monomials))]
    sums = []
    for row in rows:
        parts = [name if c == 1 else f"{c}*{name}" for c, name in zip(row.coefficients, names) if c]
        sums.append(" + ".join(parts) or "0")
    lines = [f"    {name} = {monomial}" for name, monomial in zip(names, monomials)]
    body = "\n".join([*lines, f"    heights = ({', '.join(sums)}{',' if sums else ''})"])
    source = f"def heights_at({', '.join(symbols)}):\n{body}\n    return max(heights, default=0), heights\n"
    heights_at: Callable[..., tuple[int, tuple[int, ...]]] = _compiled(source, "heights_at")
    return heights_at


def condition_on(symbols: Sequence[str], conditions: Sequence[str]) -> Callable[..., bool]:
    """All conditions, Python expressions over `symbols`, as one function of the sizes."""
    return _condition(tuple(symbols), tuple(conditions))


@cache
def _condition(symbols: tuple[str, ...], conditions: tuple[str, ...]) -> Callable[..., bool]:
    test = " and ".join(f"({condition})" for condition in conditions) or "True"
    holds: Callable[..., bool] = _compiled(f"def holds({', '.join(symbols)}):\n    return {test}\n", "holds")
    return holds


def _compiled(source: str, name: str) -> Any:
    """A function of generated source, which holds only names and expressions that torch's printer made."""
    # Printed expressions call `math.floor` and the like.
    names: dict[str, Any] = {"math": __import__("math")}
    exec(source, names)
    return names[name]
