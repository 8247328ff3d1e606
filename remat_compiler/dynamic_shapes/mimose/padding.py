"""Sizes that a model pads to a multiple before it works on them: which multiples, found from samples.

    image size   90    100   112   113   130        padded to a multiple of 28
    works on     112   112   112   140   140        bytes: a polynomial of this, a staircase of the image size

A block of such a model (Swin's windows) works partly on padded values and partly on the values as they are, which were
themselves cut from the input in patches.  So what is looked for is a pair: a *grain* c and a multiple of it, the *pad*
m,

    bytes(x) = constant + p(c * ceil(x / c)) + q(m * ceil(x / m))        c = m: one of them alone
    bytes(x) = constant + p(c * ceil(x / c)) + (q(c * ceil(x / c)), if x is no multiple of c)

since ``ceil(ceil(x / a) / b) = ceil(x / (a b))`` makes one such rounding of any number of nested ones.  The second form
is that of a block which copies its input only where there is something to pad.

What is assumed, and cannot be seen from a few samples.  All dimensions are rounded alike.  `p` and `q` have monomials
of the same degrees, of one degree alone where that explains the samples: an area is quadratic in both, though of its
padded part perhaps two values were seen.  Among pairs that explain the samples equally well, as pads of 192 and 224 do
where no sample lies between, the window m / c is the same in as many blocks as possible, and then the grain divides
those of the other blocks or is a multiple of them, as where each stage halves the image.  A pad of which the samples
show one multiple alone cannot be found at all: it looks like a constant.
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
CLOSE = 1e-3
"""Steps whose error is no more than this go before others of fewer coefficients."""
NEARLY = 3.0
"""Steps of so many times the least error of a family may still be the right ones."""


@dataclass(frozen=True, slots=True, order=True)
class Rounding:
    """Sizes rounded up.

    Attributes:
        multiple: To a multiple of this.
        copied: Whether it counts only where a size is no multiple.
    """

    multiple: int
    copied: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Steps:
    """What sizes are rounded up to.

    Attributes:
        grain: A multiple of this, for one part of the bytes.
        pad: A multiple of this, itself one of `grain`, for the other part.
        degrees: Total degrees of the monomials of both parts.
        copied: Whether the other part is there only where a size is no multiple of `grain`, the same as `pad` then.
    """

    grain: int
    pad: int
    degrees: tuple[int, ...]
    copied: bool = False

    @property
    def roundings(self) -> tuple[Rounding, ...]:
        """One for each part."""
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
        there = ~copied[..., 0] | ((up != sizes) & self.varies).any(axis=-1)
        return np.asarray(self.monomials(up) * there[..., None], np.float64)

    def columns(self, degrees: Sequence[int]) -> IntArray:
        """Monomials of `degrees`."""
        return np.flatnonzero(np.isin(self.degrees, degrees))

    def design(self, sizes: FloatArray, steps: Steps | None) -> FloatArray:
        """``[sample, column]``: a constant, then the monomials of each rounding; of the sizes themselves for `None`."""
        parts = [np.ones((len(sizes), 1))]
        if steps is None:
            parts.append(self.monomials(sizes))
        else:
            parts += list(self.rounded(sizes, steps.roundings)[..., self.columns(steps.degrees)])
        return np.concatenate(parts, axis=1)

    def solve(self, sizes: FloatArray, values: FloatArray, steps: Steps | None) -> FloatArray:
        """Coefficients ``[column, block]`` of the least squares fit of ``values[sample, block]``, the shortest ones."""
        return np.asarray(np.linalg.pinv(self.design(sizes, steps)) @ values, np.float64)


def find_steps(sizes: FloatArray, block_bytes: FloatArray, basis: Basis, tolerance: float) -> tuple[Steps | None, ...]:
    """For each block, the steps that explain its bytes; `None` where there are none, or too few samples.

    Steps that explain them closely go before those that do so to `tolerance` alone, since allocators round the bytes of
    each tensor, and then those of fewer coefficients; what decides between others is in the module docstring.

    Args:
        sizes: ``[sample, dimension]``, all different.
        block_bytes: ``[sample, block]``.
        basis: Monomials from zero.
        tolerance: Largest error of a sample, see `relative_errors`.
    """
    found: list[Steps | None] = [None] * block_bytes.shape[1]
    tried: list[tuple[list[Steps], list[int], FloatArray]] = []
    for candidates in _families(sizes, basis):
        left = [block for block, steps in enumerate(found) if steps is None]
        if not left:
            break
        errors = _errors(sizes, block_bytes[:, left], basis, candidates)
        tried.append((candidates, left, errors))
        for block, steps in zip(left, _elect(candidates, errors, tolerance, min(CLOSE, tolerance))):
            found[block] = steps
    for candidates, blocks, errors in tried:
        for block, steps in zip(blocks, _elect(candidates, errors, tolerance, tolerance)):
            found[block] = found[block] or steps
    return tuple(found)


def relative_errors(values: FloatArray, rest: FloatArray) -> FloatArray:
    """``[..., block]``: the largest of ``rest[..., sample, block]``, relative to ``values[sample, block]``.

    Small samples count as a quarter of the block's largest: their last bytes decide nothing.
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
    """Steps of as many coefficients each, the fewest first, as far as there are samples enough, and different ones."""
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
                    for grain in np.flatnonzero(levels > columns).tolist():
                        pads = range(2 * grain, most + 1, grain) if paired else (grain,)
                        family += [Steps(grain, pad, degrees, copied) for pad in pads if pad > 1]
            if family:
                yield family


def _levels(sizes: FloatArray, most: int) -> IntArray:
    """``[grain]`` for grains up to `most`: how many samples differ in their multiples of it, 0 at 0.

    Samples with the same multiples of the grain have the same multiples of its pad, too: they are as good as one.
    """
    multiples = np.ceil(sizes / np.arange(1, most + 1)[:, None, None])
    keys = np.sort(multiples @ (sizes.max() + 1) ** np.arange(sizes.shape[1]), axis=1)
    return np.concatenate([[0], 1 + np.count_nonzero(np.diff(keys, axis=1), axis=1)])


def _errors(sizes: FloatArray, values: FloatArray, basis: Basis, candidates: Sequence[Steps]) -> FloatArray:
    """Error ``[candidate, block]`` of each least squares fit, see `relative_errors`.

    All fits of the same number of columns at once: Gram-Schmidt in two passes, which is as good as Householder's.
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


def _elect(candidates: Sequence[Steps], errors: FloatArray, tolerance: float, most: float) -> list[Steps | None]:
    """The best candidate of each block with an error of at most `most`, see the module docstring.

    All blocks have a say, with the candidates that explain them to `tolerance` and nearly as well as any.
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
