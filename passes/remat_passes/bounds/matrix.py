"""A program of `rows` as arrays, and what multipliers of its rows prove."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_passes.bounds.rows import Rows

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """`Rows` as arrays; row, column and value of each entry, row by row."""

    cost: FloatArray
    upper: FloatArray
    right: FloatArray
    row: IntArray
    column: IntArray
    value: FloatArray

    @staticmethod
    def of(rows: Rows) -> Matrix:
        """The arrays of `rows`."""
        return Matrix(
            np.array(rows.cost, np.float64),
            np.array(rows.upper, np.float64),
            np.array(rows.right, np.float64),
            np.repeat(np.arange(len(rows.right)), np.diff(np.array(rows.start))),
            np.array(rows.index, np.int64),
            np.array(rows.value, np.float64),
        )

    def elastic(self) -> Matrix:
        """The program of the least violation: one more variable, of cost 1, lets all rows give way by as much."""
        count, most = len(self.right), float(np.abs(self.right).max() + np.abs(self.value).sum())
        order = np.argsort(np.concatenate([self.row, np.arange(count)]), kind="stable")
        return Matrix(
            np.append(np.zeros_like(self.cost), 1.0),
            np.append(self.upper, most),
            self.right,
            np.concatenate([self.row, np.arange(count)])[order],
            np.concatenate([self.column, np.full(count, len(self.cost))])[order],
            np.concatenate([self.value, np.ones(count)])[order],
        )

    @property
    def size(self) -> int:
        """Rows and variables together."""
        return len(self.right) + len(self.cost)

    def bound(self, multipliers: FloatArray, cost: FloatArray) -> float:
        """``bound(u)`` of the module docstring, without the offset."""
        u = np.maximum(multipliers, 0.0)
        left = np.bincount(self.column, weights=u[self.row] * self.value, minlength=len(cost))
        return float(u @ self.right + np.minimum(self.upper * (cost - left), 0.0).sum())
