"""Bytes and times of the blocks of a model at sizes not seen yet, predicted from a few samples.

    sizes (35,) (80,) (141,) ...  ──►  fit, a polynomial for each block  ──►  (97,): 12 blocks, 310 MB, ± 0.1

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.3:
the results of operators are at most quadratic in the size of the input, so a polynomial of degree 2 in the input size,
fitted to about ten steps, gives the bytes of all blocks; section 6.5 compares the cost of the alternatives.

Extensions: there may be several sizes (all monomials up to the total degree; batch times length squared is of degree
3), and each prediction comes with a margin.  Blocks that pad their input, as those of Swin do, keep an error of some
percent, as in the paper.

Few samples lower the degree: it is the largest with no more monomials than samples, in the dimensions that were seen to
vary.  In one dimension, one sample gives a constant, two a line, three a parabola.  If the samples leave coefficients
open (sizes that always rise together), those of least norm are taken, over the scaled monomials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import comb, isfinite

import numpy as np

from remat_compiler.dynamic_shapes.mimose.monomials import Basis, FloatArray
from remat_compiler.errors import RematError


class BadSample(RematError, ValueError):
    """A sample, or sizes to predict for, that cannot be used."""


@dataclass(frozen=True, slots=True)
class LayerSample:
    """The measurement of one step.

    Attributes:
        sizes: Values of the symbolic sizes, at least 1.
        block_bytes: Bytes of each block, in the order of the model.
        block_ns: Time of each block in nanoseconds; empty if it was not measured.
    """

    sizes: tuple[int, ...]
    block_bytes: tuple[int, ...]
    block_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_sizes(self.sizes)
        _check_values("block_bytes", self.block_bytes)
        _check_values("block_ns", self.block_ns)
        if not self.block_bytes:
            raise BadSample("got no block_bytes; give the bytes of one block at least")
        if self.block_ns and len(self.block_ns) != len(self.block_bytes):
            raise BadSample(
                f"got {len(self.block_bytes)} block_bytes and {len(self.block_ns)} block_ns; "
                "give a time for each or none"
            )


@dataclass(frozen=True, slots=True)
class Estimate:
    """The prediction for all blocks.

    Attributes:
        block_bytes: Bytes of each block, at least 0.
        block_ns: Time of each block in nanoseconds; empty if no sample has times.
        margin_bytes: Bytes by which the sum of `block_bytes` may be too low, see `Fit.margin_bytes`.
        extrapolated: Whether a size lies outside the range of the samples.
    """

    block_bytes: tuple[int, ...]
    block_ns: tuple[int, ...]
    margin_bytes: int
    extrapolated: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self.block_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Polynomials of all blocks.

    Attributes:
        degree: Total degree of the polynomials.
        margin_bytes: The largest underestimate of a sample's sum by a fit to the other samples; the whole sum if there
            are no others.
        block_margins: The same for each block.
        basis: The monomials.
        coefficients: ``[column, block]`` of the constant and the monomials.
        time_coefficients: The same for times; `None` without times.
        left_out_error: Relative error of a sample's sum by a fit to the other samples, the mean over the samples.
        low: Least size of the samples in each dimension.
        high: Largest size of the samples in each dimension.
    """

    degree: int
    margin_bytes: int
    block_margins: tuple[int, ...]
    basis: Basis
    coefficients: FloatArray
    time_coefficients: FloatArray | None
    left_out_error: float
    low: FloatArray
    high: FloatArray

    def predict(self, sizes: Sequence[int]) -> Estimate:
        """The prediction for all blocks at `sizes`."""
        point = np.array(sizes, np.float64)
        row = self.basis.design(point)
        times = [] if self.time_coefficients is None else _counts(row @ self.time_coefficients)
        return Estimate(
            block_bytes=tuple(_counts(row @ self.coefficients)),
            block_ns=tuple(times),
            margin_bytes=self.margin_bytes,
            extrapolated=bool((point < self.low).any() or (point > self.high).any()),
        )


@dataclass(slots=True, eq=False)
class PolynomialEstimator:
    """Learns from samples as they come, and predicts all blocks at once.

    At most `most_samples` different sizes are kept and further ones ignored, as the paper's collector stops after ten
    steps.  If sizes are repeated, the larger bytes and the shorter times count.  The order of the samples does not
    matter to the fit.

    Attributes:
        degree: Total degree of the polynomials, if there are enough samples for it.
        most_samples: Largest number of different sizes.
        fits: Number of fits so far.
    """

    degree: int = 2
    most_samples: int = 10
    fits: int = field(default=0, init=False)
    _samples: dict[tuple[int, ...], LayerSample] = field(default_factory=dict, init=False)
    _fit: Fit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.degree < 0 or self.most_samples < 1:
            raise ValueError(
                f"got degree {self.degree} and most_samples {self.most_samples}; give 0 or more, 1 or more"
            )

    @property
    def samples(self) -> tuple[LayerSample, ...]:
        """The samples, sorted by size."""
        # Sorted, so that sums in floating point do not depend on the order of arrival.
        return tuple(self._samples[sizes] for sizes in sorted(self._samples))

    @property
    def full(self) -> bool:
        """Whether no further size is taken."""
        return len(self._samples) >= self.most_samples

    def add(self, sample: LayerSample) -> bool:
        """Take `sample` and fit again; false if it changes nothing, or no further size is taken.

        Raises:
            BadSample: It has another number of sizes, of blocks or of times than those before it.
        """
        return self.add_all([sample])

    def add_all(self, samples: Iterable[LayerSample]) -> bool:
        """Take several samples and fit once, see `add`."""
        changed = False
        for sample in samples:
            self._check(sample)
            known = self._samples.get(sample.sizes)
            # Known sizes may still be corrected when no further ones are taken.
            if known is None and self.full:
                continue
            merged = sample if known is None else _merged(known, sample)
            changed |= merged != known
            self._samples[sample.sizes] = merged
        if changed:
            self._fit = fit(self.samples, self.degree)
            self.fits += 1
        return changed

    def fitted(self) -> Fit:
        """The latest fit.

        Raises:
            BadSample: There is no sample yet.
        """
        if self._fit is None:
            raise BadSample("nothing can be predicted without samples; add one first")
        return self._fit

    def predict(self, sizes: Sequence[int]) -> Estimate:
        """The prediction for all blocks at `sizes`.

        Raises:
            BadSample: There is no sample yet, or the samples have another number of sizes.
        """
        fitted = self.fitted()
        _check_sizes(sizes)
        if len(sizes) != len(fitted.low):
            raise BadSample(f"got {len(sizes)} sizes; the samples have {len(fitted.low)}")
        return fitted.predict(sizes)

    def _check(self, sample: LayerSample) -> None:
        """Refuse a sample of another form than those before it."""
        # The first one stands for all: each was checked against it.
        for before in self._samples.values():
            for what in ("sizes", "block_bytes", "block_ns"):
                got, expected = len(getattr(sample, what)), len(getattr(before, what))
                if got != expected:
                    raise BadSample(f"got {got} {what}; the samples before have {expected}, and all must be alike")
            return


def fit(samples: Sequence[LayerSample], degree: int = 2) -> Fit:
    """Least squares polynomials for all blocks.

    Args:
        samples: One or more, of different sizes, with as many blocks each.
        degree: Total degree, if there are enough samples for it.
    """
    sizes = np.array([sample.sizes for sample in samples], np.float64)
    values = np.array([sample.block_bytes for sample in samples], np.float64)
    degree = affordable_degree(sizes, degree)
    basis = Basis.of(sizes, degree)
    short = values - _left_out(sizes, values, degree)  # above 0 where the prediction was too low
    times: FloatArray | None = None
    if samples[0].block_ns:
        times = basis.solve(sizes, np.array([sample.block_ns for sample in samples], np.float64))
    return Fit(
        degree=degree,
        margin_bytes=_margin(short.sum(axis=1)),
        block_margins=tuple(_margin(short[:, block]) for block in range(values.shape[1])),
        basis=basis,
        coefficients=basis.solve(sizes, values),
        time_coefficients=times,
        left_out_error=float(np.mean(np.abs(short.sum(axis=1)) / np.maximum(values.sum(axis=1), 1.0))),
        low=sizes.min(axis=0),
        high=sizes.max(axis=0),
    )


def affordable_degree(sizes: FloatArray, degree: int) -> int:
    """The largest degree up to `degree` with no more monomials, in the dimensions that vary, than samples."""
    # `v` variables have `comb(v + p, p)` monomials of total degree up to `p`, the constant included.
    varying = int((sizes.max(axis=0) > sizes.min(axis=0)).sum())
    return max(p for p in range(degree + 1 if varying else 1) if p == 0 or comb(varying + p, p) <= len(sizes))


def _left_out(sizes: FloatArray, values: FloatArray, degree: int) -> FloatArray:
    """The prediction for each sample from all others; 0 if there are none."""
    count = len(sizes)
    if count == 1:
        return np.zeros_like(values)
    others = np.array([[k for k in range(count) if k != i] for i in range(count)])
    # One sample fewer may afford only a lower degree; the lowest serves all, so that one design is enough.
    lower = min(affordable_degree(sizes[rows], degree) for rows in others)
    design = Basis.of(sizes, lower).design(sizes)
    # All fits at once: the pseudo-inverse of a stack of matrices.
    solved = np.linalg.pinv(design[others]) @ values[others]
    return np.asarray(np.einsum("ic,icb->ib", design, solved))


def _margin(short: FloatArray) -> int:
    """The largest underestimate in whole bytes."""
    # Arithmetic is not exact to the last digit: without the slack, exact samples had a margin of 1 byte.
    return max(int(np.ceil(short.max() - 1e-3)), 0)


def _counts(values: FloatArray) -> list[int]:
    """Whole numbers, at least 0."""
    return [max(round(value), 0) for value in values.tolist()]


def _merged(first: LayerSample, second: LayerSample) -> LayerSample:
    """One sample of two at the same sizes: the larger bytes and the shorter times."""
    # More bytes are the safe side; longer times are disturbed ones.
    return LayerSample(
        first.sizes,
        tuple(map(max, first.block_bytes, second.block_bytes)),
        tuple(map(min, first.block_ns, second.block_ns)),
    )


def _check_sizes(sizes: Sequence[int]) -> None:
    if not sizes or not all(isfinite(size) and size >= 1 for size in sizes):
        raise BadSample(f"got sizes {tuple(sizes)}; give one or more, each 1 or more")


def _check_values(what: str, values: Sequence[int]) -> None:
    if not all(isfinite(value) and value >= 0 for value in values):
        raise BadSample(f"got {what} {tuple(values)}; give finite numbers, 0 or more")
