"""The monomials of scaled sizes, and least squares fits by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Monomials of sizes that are scaled to -1 to 1 over the samples: well conditioned, in ranges far from 0 too.

    Attributes:
        middle: In each dimension the size that is scaled to 0.
        unit: In each dimension the distance from there that is scaled to 1.
        varies: Whether the sizes of each dimension differ; in the other dimensions all are scaled to 0.
        exponents: A row for each monomial, of total degree 1 or more.
    """

    middle: FloatArray
    unit: FloatArray
    varies: BoolArray
    exponents: IntArray

    @staticmethod
    def of(sizes: FloatArray, degree: int) -> Basis:
        """All monomials up to a total degree, scaled to ``sizes[sample, dimension]``."""
        low, high = sizes.min(axis=0), sizes.max(axis=0)
        # The least unit is for dimensions that do not vary, which would divide by 0.
        unit = np.maximum((high - low) / 2, 0.5)
        return Basis((low + high) / 2, unit, high > low, _exponents(sizes.shape[1], degree))

    def monomials(self, sizes: FloatArray) -> FloatArray:
        """``[..., monomial]`` of ``sizes[..., dimension]``."""
        scaled = np.where(self.varies, (sizes - self.middle) / self.unit, 0.0)
        return np.asarray(np.prod(scaled[..., None, :] ** self.exponents, axis=-1))

    def design(self, sizes: FloatArray) -> FloatArray:
        """``[..., column]`` of ``sizes[..., dimension]``: a constant, then the monomials."""
        return np.concatenate([np.ones((*sizes.shape[:-1], 1)), self.monomials(sizes)], axis=-1)

    def solve(self, sizes: FloatArray, values: FloatArray) -> FloatArray:
        """Coefficients ``[column, block]`` of the least squares fit of ``values[sample, block]``, of least norm."""
        return np.asarray(np.linalg.pinv(self.design(sizes)) @ values, np.float64)


def _exponents(dimensions: int, degree: int) -> IntArray:
    """All exponents of total degree 1 to `degree`."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(dimensions):
        rows = [(*row, power) for row in rows for power in range(degree - sum(row) + 1)]
    return np.array([row for row in rows if sum(row)], np.int64).reshape(-1, dimensions)
