"""Sizes that a model pads to a multiple before it works on them: which multiples, found from samples.

    image size   90    100   112   113   130        padded to a multiple of 28
    works on     112   112   112   140   140        bytes: a polynomial of this, a staircase of the image size

A block of such a model (Swin's windows) works partly on padded values and partly on the values as they are, which were
themselves cut from the input in patches.  So what is looked for is a pair: a *grain* c and a multiple of it, the *pad*
m,

    bytes(x) = constant + p(c * ceil(x / c)) + q(m * ceil(x / m))        c = m: one of them alone

since ``ceil(ceil(x / a) / b) = ceil(x / (a b))`` makes one such rounding of any number of nested ones.

What is assumed, and cannot be seen from a few samples.  All dimensions are rounded alike.  `p` and `q` have monomials
of the same degrees, of one degree alone where that explains the samples: an area is quadratic in both, though of its
padded part perhaps two values were seen.  Among pairs that explain the samples equally well, as pads of 192 and 224 do
where no sample lies between, the window m / c is the same in as many blocks as possible, and then the grain divides
those of the other blocks or is a multiple of them, as where each stage halves the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_PAD = 512
"""The largest pad that is looked for."""
SPARE = 2
"""Samples beyond the coefficients that a pair must explain."""
SAME = 1e-9
"""Relative errors below this are those of arithmetic."""


@dataclass(frozen=True, slots=True, order=True)
class Steps:
    """What sizes are rounded up to.

    Attributes:
        grain: A multiple of this, for one part of the bytes.
        pad: A multiple of this, itself one of `grain`, for the other part.
        degrees: Total degrees of the monomials of both parts.
    """

    grain: int
    pad: int
    degrees: tuple[int, ...]

    @property
    def roundings(self) -> tuple[int, ...]:
        """Both, or the one that there is."""
        return (self.grain,) if self.grain == self.pad else (self.grain, self.pad)

    @property
    def window(self) -> int:
        """The pad in grains."""
        return self.pad // self.grain


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Monomials of scaled sizes.

    Attributes:
        middle: What is 0 in each dimension.
        unit: What is 1 beyond that.
        varies: Whether the sizes of each dimension differ; those of the others are always 0.
        exponents: A row a monomial, of total degree 1 or more.
        degrees: Total degree of each monomial.
    """

    middle: FloatArray
    unit: FloatArray
    varies: BoolArray
    exponents: IntArray
    degrees: IntArray

    @staticmethod
    def centred(sizes: FloatArray, degree: int) -> Basis:
        """From -1 to 1 over `sizes`, a row each: well conditioned, in ranges far from 0 too."""
        low, high = sizes.min(axis=0), sizes.max(axis=0)
        rows = _exponents(sizes.shape[1], degree)
        return Basis((low + high) / 2, np.maximum((high - low) / 2, 0.5), high > low, rows, rows.sum(axis=1))

    @staticmethod
    def from_zero(sizes: FloatArray, degree: int) -> Basis:
        """From 0 to 1 at the largest of `sizes`, so that each degree can do without those below."""
        rows = _exponents(sizes.shape[1], degree)
        varies = sizes.max(axis=0) > sizes.min(axis=0)
        return Basis(np.zeros(sizes.shape[1]), sizes.max(axis=0), varies, rows, rows.sum(axis=1))

    def monomials(self, sizes: FloatArray, multiple: int | IntArray = 1) -> FloatArray:
        """``[..., monomial]`` of ``sizes[..., dimension]`` rounded up to `multiple`, which is broadcast to them."""
        if not isinstance(multiple, int) or multiple > 1:
            sizes = np.asarray(multiple * np.ceil(sizes / multiple), np.float64)
        scaled = np.where(self.varies, (sizes - self.middle) / self.unit, 0.0)
        return np.asarray(np.prod(scaled[..., None, :] ** self.exponents, axis=-1))

    def columns(self, degrees: Sequence[int]) -> IntArray:
        """Monomials of `degrees`."""
        return np.flatnonzero(np.isin(self.degrees, degrees))

    def design(self, sizes: FloatArray, steps: Steps | None) -> FloatArray:
        """``[sample, column]``: a constant, then the monomials of each rounding; of the sizes themselves for `None`."""
        parts = [np.ones((len(sizes), 1))]
        if steps is None:
            parts.append(self.monomials(sizes))
        else:
            columns = self.columns(steps.degrees)
            parts += [self.monomials(sizes, multiple)[:, columns] for multiple in steps.roundings]
        return np.concatenate(parts, axis=1)

    def solve(self, sizes: FloatArray, values: FloatArray, steps: Steps | None) -> FloatArray:
        """Coefficients ``[column, block]`` of the least squares fit of ``values[sample, block]``, the shortest ones."""
        return np.asarray(np.linalg.pinv(self.design(sizes, steps)) @ values, np.float64)


def find_steps(sizes: FloatArray, block_bytes: FloatArray, basis: Basis, tolerance: float) -> tuple[Steps | None, ...]:
    """For each block, the steps that explain its bytes to `tolerance`; `None` where there are none, or too few samples.

    Fewer coefficients go first; what decides between steps of as many is in the module docstring.

    Args:
        sizes: ``[sample, dimension]``, all different.
        block_bytes: ``[sample, block]``.
        basis: Monomials from zero.
        tolerance: Largest relative error of a sample.
    """
    found: list[Steps | None] = [None] * block_bytes.shape[1]
    for candidates in _families(sizes, basis):
        left = [block for block, steps in enumerate(found) if steps is None]
        if left:
            errors = _errors(sizes, block_bytes[:, left], basis, candidates)
            for block, steps in zip(left, _elect(candidates, errors, tolerance)):
                found[block] = steps
    return tuple(found)


def _exponents(dimensions: int, degree: int) -> IntArray:
    """All exponents of total degree 1 to `degree`."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(dimensions):
        rows = [(*row, power) for row in rows for power in range(degree - sum(row) + 1)]
    return np.array([row for row in rows if sum(row)], np.int64).reshape(-1, dimensions)


def _families(sizes: FloatArray, basis: Basis) -> Iterator[list[Steps]]:
    """Steps of as many coefficients each, the fewest first, as far as there are samples enough."""
    most = min(MOST_PAD, int(sizes.max()) - 1)
    single = [(pad, pad) for pad in range(2, most + 1)]
    pairs = [(grain, pad) for grain in range(1, most // 2 + 1) for pad in range(2 * grain, most + 1, grain)]
    degree = int(basis.degrees.max())
    alone = [(d,) for d in range(degree, 0, -1)]
    every = [tuple(range(1, degree + 1))] if degree > 1 else []
    for roundings, degrees in ((single, alone), (single, every), (pairs, alone), (pairs, every)):
        per_part = max((len(basis.columns(own)) for own in degrees), default=0)
        columns = 1 + per_part * (1 if roundings is single else 2)
        if roundings and degrees and columns + SPARE <= len(sizes):
            yield [Steps(grain, pad, own) for own in degrees for grain, pad in roundings]


def _errors(sizes: FloatArray, values: FloatArray, basis: Basis, candidates: Sequence[Steps]) -> FloatArray:
    """Largest relative error ``[candidate, block]`` of each least squares fit.

    All fits of the same number of columns at once: Gram-Schmidt in two passes, which is as good as Householder's.
    """
    multiples = sorted({multiple for steps in candidates for multiple in steps.roundings})
    at = {multiple: k for k, multiple in enumerate(multiples)}
    rounded = np.stack([basis.monomials(sizes, multiple) for multiple in multiples])
    errors = np.empty((len(candidates), values.shape[1]))
    scale = np.maximum(np.abs(values), 1.0)
    for degrees in dict.fromkeys(steps.degrees for steps in candidates):
        own = [k for k, steps in enumerate(candidates) if steps.degrees == degrees]
        parts = np.array([[at[multiple] for multiple in candidates[k].roundings] for k in own])
        columns = rounded[:, :, basis.columns(degrees)]
        ones = np.ones((len(own), len(sizes), 1))
        design = np.concatenate([ones, *(columns[part] for part in parts.T)], axis=2)
        errors[own] = np.abs(_residuals(design, values) / scale).max(axis=1)
    return np.where(errors < SAME, 0.0, errors)


def _residuals(design: FloatArray, values: FloatArray) -> FloatArray:
    """``[fit, sample, block]``: what the columns ``design[fit, sample, column]`` leave of ``values[sample, block]``."""
    rest: FloatArray = np.repeat(values[None], len(design), axis=0)
    done: list[FloatArray] = []
    for k in range(design.shape[2]):
        column = design[:, :, k]
        length = np.linalg.norm(column, axis=1)
        for other in chain(done, done):
            column = column - other * np.einsum("fs,fs->f", other, column)[:, None]
        left = np.linalg.norm(column, axis=1)
        # A column that depends on those before adds nothing but noise.
        independent = left > SAME * np.maximum(length, SAME)
        column = np.where(independent[:, None], column / np.where(independent, left, 1.0)[:, None], 0.0)
        done.append(column)
        rest -= column[:, :, None] * np.einsum("fs,fsb->fb", column, rest)[:, None, :]
    return rest


def _elect(candidates: Sequence[Steps], errors: FloatArray, tolerance: float) -> list[Steps | None]:
    """The best candidate of each block, see the module docstring."""
    fitting: dict[Steps, set[int]] = {}
    allowed: list[list[int]] = [[] for _ in range(errors.shape[1])]
    for k, block in np.argwhere(errors <= tolerance).tolist():
        fitting.setdefault(candidates[k], set()).add(block)
        allowed[block].append(k)
    of_window: dict[int, set[int]] = {}
    for steps, blocks in fitting.items():
        of_window.setdefault(steps.window, set()).update(blocks)
    related = {one: _related(one, fitting) for one in fitting}

    def rank(block: int, k: int) -> tuple[int, int, float, Steps]:
        steps = candidates[k]
        return (-len(of_window[steps.window]), -related[steps], float(errors[k, block]), steps)

    best = (min(own, key=lambda k: rank(block, k), default=None) for block, own in enumerate(allowed))
    return [None if k is None else candidates[k] for k in best]


def _related(one: Steps, fitting: dict[Steps, set[int]]) -> int:
    """Blocks that steps of the same window explain whose grain divides that of `one`, or is a multiple of it."""
    blocks: set[int] = set()
    for other, own in fitting.items():
        if other.window == one.window and (other.grain % one.grain == 0 or one.grain % other.grain == 0):
            blocks |= own
    return len(blocks)
