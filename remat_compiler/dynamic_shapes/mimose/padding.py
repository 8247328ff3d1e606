"""Find from samples the multiples to which a model pads its input sizes.

    image size   90    100   112   113   130        padded to a multiple of 28
    works on     112   112   112   140   140        bytes: a polynomial of this, a staircase of the image size

A block of such a model (Swin's windows) works partly on padded values, and partly on values that are not padded but
were cut from the input in patches.  So the search is for a pair: a *grain* c and a multiple of it, the *pad* m,

    bytes(x) = constant + p(c * ceil(x / c)) + q(m * ceil(x / m))        c = m: one of them alone
    bytes(x) = constant + p(c * ceil(x / c)) + (q(c * ceil(x / c)), if x is no multiple of c)

since ``ceil(ceil(x / a) / b) = ceil(x / (a b))`` turns any number of nested roundings into one.  The second form is
that of a block which copies its input only if there is something to pad.

Assumptions, which a few samples cannot show: All dimensions are rounded alike.  `p` and `q` have monomials of the same
degrees, of one degree alone if that explains the samples: an area is quadratic in both, though perhaps only two values
of its padded part were seen.  Some pairs explain the samples equally well, as pads of 192 and 224 do if no sample lies
between.  Among these, the choice is the one whose window m / c is the same in as many blocks as possible, and then
whose grain divides those of the other blocks or is a multiple of them, as if each stage halves the image.  A pad of
which the samples show only one multiple cannot be found at all: it looks like a constant.
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
"""The largest pad in the search."""
SPARE = 2
"""A pair must explain at least so many samples more than it has coefficients."""
SAME = 1e-9
"""Relative errors below this are rounding of the arithmetic, and count as 0."""
CLOSE = 1e-3
"""Steps with an error of at most this are preferred, even to steps with fewer coefficients and a larger error."""
NEARLY = 3.0
"""Steps with up to so many times the least error of their family may still be the right ones."""


@dataclass(frozen=True, slots=True, order=True)
class Rounding:
    """Sizes rounded up.

    Attributes:
        multiple: To a multiple of this.
        copied: Whether it counts only if a size is no multiple.
    """

    multiple: int
    copied: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Steps:
    """The multiples to which sizes are rounded up.

    Attributes:
        grain: The multiple for the part `p` of the bytes.
        pad: The multiple for the part `q`; itself a multiple of `grain`.
        degrees: Total degrees of the monomials of both parts.
        copied: Whether `q` counts only if a size is no multiple of `grain`, which then equals `pad`.
    """

    grain: int
    pad: int
    degrees: tuple[int, ...]
    copied: bool = False

    @property
    def roundings(self) -> tuple[Rounding, ...]:
        """The rounding of each part of the bytes; one if both are the same."""
        if self.grain == self.pad and not self.copied:
            return (Rounding(self.grain),)
        return (Rounding(self.grain), Rounding(self.pad, self.copied))

    @property
    def window(self) -> int:
        """The pad in grains."""
        return self.pad // self.grain


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Monomials of scaled sizes.

    Attributes:
        middle: In each dimension the size that is scaled to 0.
        unit: In each dimension the distance from there that is scaled to 1.
        varies: Whether the sizes of each dimension differ; in the other dimensions all are scaled to 0.
        exponents: A row for each monomial, of total degree 1 or more.
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
        # The least unit is for dimensions that do not vary, which would divide by 0.
        return Basis((low + high) / 2, np.maximum((high - low) / 2, 0.5), high > low, rows, rows.sum(axis=1))

    @staticmethod
    def from_zero(sizes: FloatArray, degree: int) -> Basis:
        """From 0 to 1 at the largest of `sizes`: without an offset, a monomial of one degree needs no lower ones."""
        rows = _exponents(sizes.shape[1], degree)
        varies = sizes.max(axis=0) > sizes.min(axis=0)
        return Basis(np.zeros(sizes.shape[1]), sizes.max(axis=0), varies, rows, rows.sum(axis=1))

    def monomials(self, sizes: FloatArray) -> FloatArray:
        """``[..., monomial]`` of ``sizes[..., dimension]``."""
        scaled = np.where(self.varies, (sizes - self.middle) / self.unit, 0.0)
        return np.asarray(np.prod(scaled[..., None, :] ** self.exponents, axis=-1))

    def rounded(self, sizes: FloatArray, roundings: Sequence[Rounding]) -> FloatArray:
        """``[rounding, ..., monomial]`` of ``sizes[..., dimension]``."""
        shape = (-1, *(1 for _ in sizes.shape))
        multiple = np.array([rounding.multiple for rounding in roundings], np.float64).reshape(shape)
        copied = np.array([rounding.copied for rounding in roundings], np.bool_).reshape(shape)
        up = multiple * np.ceil(sizes / multiple)
        # A part that is only copied is there if at least one dimension has something to pad.
        there = ~copied[..., 0] | ((up != sizes) & self.varies).any(axis=-1)
        return np.asarray(self.monomials(up) * there[..., None], np.float64)

    def columns(self, degrees: Sequence[int]) -> IntArray:
        """Monomials of `degrees`."""
        return np.flatnonzero(np.isin(self.degrees, degrees))

    def design(self, sizes: FloatArray, steps: Steps | None) -> FloatArray:
        """``[sample, column]``: a constant, then the monomials of each rounding; for `None`, those of the sizes."""
        parts = [np.ones((len(sizes), 1))]
        if steps is None:
            parts.append(self.monomials(sizes))
        else:
            parts += list(self.rounded(sizes, steps.roundings)[..., self.columns(steps.degrees)])
        return np.concatenate(parts, axis=1)

    def solve(self, sizes: FloatArray, values: FloatArray, steps: Steps | None) -> FloatArray:
        """Coefficients ``[column, block]`` of the least squares fit of ``values[sample, block]``, of least norm."""
        return np.asarray(np.linalg.pinv(self.design(sizes, steps)) @ values, np.float64)


def find_steps(sizes: FloatArray, block_bytes: FloatArray, basis: Basis, tolerance: float) -> tuple[Steps | None, ...]:
    """For each block, the steps that explain its bytes; `None` if there are none, or too few samples.

    Steps that explain the bytes closely are preferred to those that do so only to `tolerance` (allocators round the
    bytes of each tensor), then steps with fewer coefficients; the module docstring says what decides between the rest.

    Args:
        sizes: ``[sample, dimension]``, all different.
        block_bytes: ``[sample, block]``.
        basis: Monomials from zero.
        tolerance: Largest error of a sample, see `relative_errors`.
    """
    found: list[Steps | None] = [None] * block_bytes.shape[1]
    tried: list[tuple[list[Steps], list[int], FloatArray]] = []
    # From few coefficients to many, each family only for blocks that no smaller one explains closely.
    for candidates in _families(sizes, basis):
        left = [block for block, steps in enumerate(found) if steps is None]
        if not left:
            break
        errors = _errors(sizes, block_bytes[:, left], basis, candidates)
        tried.append((candidates, left, errors))
        for block, steps in zip(left, _elect(candidates, errors, tolerance, min(CLOSE, tolerance))):
            found[block] = steps
    # Then, again from few to many, what explains the remaining blocks to `tolerance`; the errors are known already.
    for candidates, blocks, errors in tried:
        for block, steps in zip(blocks, _elect(candidates, errors, tolerance, tolerance)):
            found[block] = found[block] or steps
    return tuple(found)


def relative_errors(values: FloatArray, rest: FloatArray) -> FloatArray:
    """``[..., block]``: the largest of ``rest[..., sample, block]``, relative to ``values[sample, block]``.

    Samples below a quarter of the block's largest count as that quarter: their last bytes decide nothing.
    """
    scale = np.maximum(np.maximum(values, values.max(axis=0) / 4), 1.0)
    return np.asarray(np.abs(rest / scale).max(axis=-2), np.float64)


def _exponents(dimensions: int, degree: int) -> IntArray:
    """All exponents of total degree 1 to `degree`."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(dimensions):
        rows = [(*row, power) for row in rows for power in range(degree - sum(row) + 1)]
    return np.array([row for row in rows if sum(row)], np.int64).reshape(-1, dimensions)


def _families(sizes: FloatArray, basis: Basis) -> Iterator[list[Steps]]:
    """Families of steps, from few coefficients to many, for which there are enough samples that differ."""
    # A pad of the largest size or more has one multiple only, and looks like a constant.
    most = min(MOST_PAD, int(sizes.max()) - 1)
    levels = _levels(sizes, most)
    degree = int(basis.degrees.max())
    alone = [(d,) for d in range(degree, 0, -1)]
    every = [tuple(range(1, degree + 1))] if degree > 1 else []
    for choices in (alone, every):
        for parts, paired, copied in ((1, False, False), (2, True, False), (2, False, True)):
            family: list[Steps] = []
            for degrees in choices:
                columns = 1 + parts * len(basis.columns(degrees))
                if columns + SPARE <= len(sizes):
                    # With no more levels than coefficients, any grain would explain the samples.
                    for grain in np.flatnonzero(levels > columns).tolist():
                        pads = range(2 * grain, most + 1, grain) if paired else (grain,)
                        family += [Steps(grain, pad, degrees, copied) for pad in pads if pad > 1]
            if family:
                yield family


def _levels(sizes: FloatArray, most: int) -> IntArray:
    """``[grain]`` for grains up to `most`: the number of samples that differ once rounded to it; 0 for the grain 0.

    Samples that a grain rounds alike are rounded alike by its pads, too: they count as one.
    """
    multiples = np.ceil(sizes / np.arange(1, most + 1)[:, None, None])
    # Multiples are below the base, so each row of them is one number: rows can be counted by sorting.
    keys = np.sort(multiples @ (sizes.max() + 1) ** np.arange(sizes.shape[1]), axis=1)
    return np.concatenate([[0], 1 + np.count_nonzero(np.diff(keys, axis=1), axis=1)])


def _errors(sizes: FloatArray, values: FloatArray, basis: Basis, candidates: Sequence[Steps]) -> FloatArray:
    """Error ``[candidate, block]`` of each least squares fit, see `relative_errors`.

    All fits with the same number of columns are made at once, by Gram-Schmidt in two passes, which is as accurate as
    Householder's method.
    """
    roundings = sorted({rounding for steps in candidates for rounding in steps.roundings})
    at = {rounding: k for k, rounding in enumerate(roundings)}
    rounded = basis.rounded(sizes, roundings)
    errors = np.empty((len(candidates), values.shape[1]))
    for degrees in dict.fromkeys(steps.degrees for steps in candidates):
        own = [k for k, steps in enumerate(candidates) if steps.degrees == degrees]
        parts = np.array([[at[rounding] for rounding in candidates[k].roundings] for k in own])
        columns = rounded[:, :, basis.columns(degrees)]
        ones = np.ones((len(own), len(sizes), 1))
        design = np.concatenate([ones, *(columns[part] for part in parts.T)], axis=2)
        errors[own] = relative_errors(values, _residuals(design, values))
    # Candidates that are exact must be equally good, or rounding would choose among them.
    return np.where(errors < SAME, 0.0, errors)


def _residuals(design: FloatArray, values: FloatArray) -> FloatArray:
    """``[fit, sample, block]``: residuals of ``values[sample, block]`` after ``design[fit, sample, column]``."""
    rest: FloatArray = np.repeat(values[None], len(design), axis=0)
    done: list[FloatArray] = []
    for k in range(design.shape[2]):
        column = design[:, :, k]
        length = np.linalg.norm(column, axis=1)
        # Twice: after one pass, nearly dependent columns are not orthogonal enough.
        for other in chain(done, done):
            column = column - other * np.einsum("fs,fs->f", other, column)[:, None]
        left = np.linalg.norm(column, axis=1)
        # A column that depends on those before it has only rounding left, which must not be scaled up.
        independent = left > SAME * np.maximum(length, SAME)
        column = np.where(independent[:, None], column / np.where(independent, left, 1.0)[:, None], 0.0)
        done.append(column)
        rest -= column[:, :, None] * np.einsum("fs,fsb->fb", column, rest)[:, None, :]
    return rest


def _elect(candidates: Sequence[Steps], errors: FloatArray, tolerance: float, most: float) -> list[Steps | None]:
    """The best candidate of each block with an error of at most `most`, see the module docstring.

    All blocks vote: each for the candidates that explain it to `tolerance`, and nearly as well as any other does.
    """
    fitting: dict[Steps, set[int]] = {}
    allowed: list[list[int]] = [[] for _ in range(errors.shape[1])]
    nearly = NEARLY * errors.min(axis=0)
    for k, block in np.argwhere((errors <= tolerance) & (errors <= nearly)).tolist():
        fitting.setdefault(candidates[k], set()).add(block)
        if errors[k, block] <= most:
            allowed[block].append(k)
    of_window: dict[int, set[int]] = {}
    for steps, blocks in fitting.items():
        of_window.setdefault(steps.window, set()).update(blocks)
    related = {one: _related(one, fitting) for one in fitting}

    # Most blocks of the same window, then most related grains, then the least error; the steps themselves decide ties.
    def rank(block: int, k: int) -> tuple[int, int, float, Steps]:
        steps = candidates[k]
        return (-len(of_window[steps.window]), -related[steps], float(errors[k, block]), steps)

    best = (min(own, key=lambda k: rank(block, k), default=None) for block, own in enumerate(allowed))
    return [None if k is None else candidates[k] for k in best]


def _related(one: Steps, fitting: dict[Steps, set[int]]) -> int:
    """Number of blocks explained by steps of `one`'s window whose grain divides that of `one`, or is a multiple."""
    blocks: set[int] = set()
    for other, own in fitting.items():
        if other.window == one.window and (other.grain % one.grain == 0 or one.grain % other.grain == 0):
            blocks |= own
    return len(blocks)
