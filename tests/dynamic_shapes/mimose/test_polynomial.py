"""What the polynomial estimator makes of a few samples: exact where it can be, honest where it cannot."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from math import nan, prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_compiler.dynamic_shapes.mimose.monomials import Basis
from remat_compiler.dynamic_shapes.mimose.polynomial import BadSample, Estimate, LayerSample, PolynomialEstimator, fit

SEEDS = st.integers(0, 2**32 - 1)


def polynomial(rng: Random, dimensions: int, degree: int) -> dict[tuple[int, ...], int]:
    """Coefficients by monomial, which names its factors."""
    monomials = (m for d in range(degree + 1) for m in combinations_with_replacement(range(dimensions), d))
    return {monomial: rng.randrange(10**5) for monomial in monomials}


def value(coefficients: dict[tuple[int, ...], int], sizes: tuple[int, ...]) -> int:
    return sum(factor * prod(sizes[d] for d in monomial) for monomial, factor in coefficients.items())


def learnt(samples: list[LayerSample], **options: int) -> PolynomialEstimator:
    estimator = PolynomialEstimator(most_samples=len(samples), **options)
    estimator.add_all(samples)
    return estimator


def distinct(rng: Random, dimensions: int, count: int, low: int = 1, high: int = 512) -> list[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    while len(found) < count:
        found.add(tuple(rng.randint(low, high) for _ in range(dimensions)))
    return sorted(found)


def lost_bytes(samples: list[LayerSample], degree: int, at: tuple[int, ...]) -> list[float]:
    """Bytes of each block that least squares in double precision may lose at `at`.

    The first-order bound of a solver that is stable in norms (Higham, Accuracy and Stability of Numerical Algorithms,
    section 20.1): the weight of the samples in the prediction, times the rounding of the design and of the samples.
    """
    sizes = np.array([sample.sizes for sample in samples], np.float64)
    values = np.array([sample.block_bytes for sample in samples], np.float64)
    basis = Basis.of(sizes, degree)
    design, row = basis.design(sizes), basis.design(np.array([at], np.float64))
    weight = np.linalg.norm(row @ np.linalg.pinv(design))
    coefficients = np.linalg.norm(basis.solve(sizes, values), axis=0)
    rounded = np.linalg.norm(design, 2) * coefficients + np.linalg.norm(values, axis=0)
    return list(np.finfo(np.float64).eps * weight * rounded)


@pytest.mark.parametrize(("dimensions", "degree", "count"), [(1, 1, 2), (1, 2, 3), (1, 3, 4), (2, 2, 10), (3, 2, 16)])
@settings(max_examples=40)
@given(seed=SEEDS)
def test_polynomials_are_met_exactly(dimensions: int, degree: int, count: int, seed: int) -> None:
    rng = Random(seed)
    blocks = [polynomial(rng, dimensions, degree) for _ in range(3)]
    sizes = list(product((3, 90, 512), repeat=dimensions)) if dimensions > 1 else distinct(rng, 1, count)
    if dimensions > 1:
        sizes = sorted({*sizes[:: max(len(sizes) // count, 1)], *distinct(rng, dimensions, count)})
    samples = [LayerSample(at, tuple(value(block, at) for block in blocks)) for at in sizes]
    estimator = learnt(samples, degree=degree)
    for at in distinct(rng, dimensions, 5):
        expected = [value(block, at) for block in blocks]
        got = estimator.predict(at).block_bytes
        # Samples side by side say little about sizes far away: digits are lost there, not bytes of use.
        lost = lost_bytes(samples, degree, at)
        assert all(abs(have - right) <= 1 + most for have, right, most in zip(got, expected, lost)), (got, expected)


@given(seed=SEEDS)
@settings(max_examples=20)
def test_the_order_of_samples_does_not_matter(seed: int) -> None:
    rng = Random(seed)
    samples = [
        LayerSample(at, (rng.randrange(10**6), rng.randrange(10**6)), (rng.randrange(10**6), 5))
        for at in distinct(rng, 1, 6)
    ]
    samples.append(LayerSample(samples[2].sizes, (7, 10**6), (0, 9)))
    shuffled = rng.sample(samples, len(samples))
    one_by_one = PolynomialEstimator()
    for sample in shuffled:
        one_by_one.add(sample)
    for at in (1, 200, 512):
        assert one_by_one.predict((at,)) == learnt(samples).predict((at,))


@given(seed=SEEDS, count=st.integers(1, 10))
@settings(max_examples=60)
def test_margins_hold_on_samples_that_the_fit_did_not_see(seed: int, count: int) -> None:
    rng = Random(seed)
    samples = [
        LayerSample(at, (rng.randrange(10**6), rng.randrange(10**6) + at[0] ** 2)) for at in distinct(rng, 1, count)
    ]
    whole = fit(samples)
    for left_out in samples:
        others = [sample for sample in samples if sample != left_out]
        predicted = fit(others).predict(left_out.sizes).block_bytes if others else (0, 0)
        short = [have - got for have, got in zip(left_out.block_bytes, predicted)]
        assert sum(short) <= whole.margin_bytes + 2
        assert all(own <= margin + 1 for own, margin in zip(short, whole.block_margins))


def test_few_samples_lower_the_degree() -> None:
    estimator = PolynomialEstimator()
    assert estimator.add(LayerSample((100,), (1000, 50)))
    assert estimator.predict((200,)) == Estimate((1000, 50), (), 1050, extrapolated=True)
    assert estimator.add(LayerSample((200,), (3000, 50)))
    assert estimator.predict((150,)) == Estimate((2000, 50), (), 2000, extrapolated=False)
    assert estimator.add(LayerSample((300,), (7000, 50)))
    assert estimator.predict((400,)).block_bytes == (13000, 50)
    assert [estimator.fits, estimator.fitted().degree] == [3, 2]


def test_exact_samples_leave_no_margin() -> None:
    estimator = learnt([LayerSample((at,), (7 * at * at + 3,)) for at in (30, 70, 110, 290)])
    assert estimator.predict((200,)) == Estimate((7 * 200 * 200 + 3,), (), 0, extrapolated=False)


def test_noise_leaves_a_margin() -> None:
    noise = (0, 900, -400, 100, -700, 300)
    samples = [LayerSample((100 + 30 * k,), (10**6 + off,)) for k, off in enumerate(noise)]
    margin = learnt(samples).fitted().margin_bytes
    assert 900 <= margin <= 5000


def test_no_bytes_below_zero() -> None:
    estimator = learnt([LayerSample((at,), (max(at - 100, 0),)) for at in (100, 110, 130)])
    assert min(estimator.predict((at,)).block_bytes[0] for at in range(1, 131)) == 0


def test_times_are_predicted_where_there_are_any() -> None:
    estimator = learnt([LayerSample((at,), (at, at), (at * at, 4 * at)) for at in (10, 20, 40, 50)])
    assert estimator.predict((30,)).block_ns == (900, 120)


def test_of_a_repeated_size_the_larger_bytes_and_the_shorter_time() -> None:
    estimator = PolynomialEstimator()
    estimator.add(LayerSample((10,), (100, 300), (5, 6)))
    assert estimator.add(LayerSample((10,), (200, 200), (4, 7)))
    assert estimator.samples == (LayerSample((10,), (200, 300), (4, 6)),)
    assert not estimator.add(LayerSample((10,), (150, 300), (9, 9)))
    assert estimator.fits == 2


def test_no_more_sizes_than_allowed_are_kept() -> None:
    estimator = PolynomialEstimator(most_samples=3)
    added = [estimator.add(LayerSample((at,), (at,))) for at in (1, 2, 3, 4, 2)]
    assert added == [True, True, True, False, False]
    assert estimator.full
    assert estimator.fits == 3
    assert len(estimator.samples) == 3


def test_a_size_that_never_varied_is_left_out() -> None:
    estimator = learnt([LayerSample((8, at), (8 * at * at,)) for at in (10, 20, 30, 60)])
    assert estimator.fitted().degree == 2
    assert estimator.predict((8, 50)) == Estimate((8 * 2500,), (), 0, extrapolated=False)
    other = estimator.predict((16, 50))
    assert (other.block_bytes, other.extrapolated) == ((8 * 2500,), True)


def test_ranges_far_from_zero_are_well_conditioned() -> None:
    estimator = learnt([LayerSample((at,), (9 * at * at,)) for at in range(100_000, 100_010)])
    assert estimator.predict((100_020,)).block_bytes == (9 * 100_020**2,)


@pytest.mark.parametrize(
    ("sizes", "block_bytes", "block_ns", "message"),
    [
        ((), (1,), (), "got sizes"),
        ((0,), (1,), (), "each 1 or more"),
        ((5,), (), (), "no block_bytes"),
        ((5,), (3, -1), (), "got block_bytes"),
        ((5,), (3, nan), (), "finite"),
        ((5,), (3,), (-1,), "got block_ns"),
        ((5,), (3, 4), (1,), "give a time for each"),
    ],
)
def test_bad_samples_are_refused(
    sizes: tuple[int, ...], block_bytes: tuple[int, ...], block_ns: tuple[int, ...], message: str
) -> None:
    with pytest.raises(BadSample, match=message):
        LayerSample(sizes, block_bytes, block_ns)


@pytest.mark.parametrize(
    "other",
    [
        LayerSample((5, 6), (1, 2), (1, 2)),
        LayerSample((6,), (1,), (1,)),
        LayerSample((6,), (1, 2)),
        LayerSample((6,), (1, 2, 3)),
    ],
)
def test_samples_must_be_alike(other: LayerSample) -> None:
    estimator = PolynomialEstimator()
    estimator.add(LayerSample((5,), (1, 2), (3, 4)))
    with pytest.raises(BadSample, match="must be alike"):
        estimator.add(other)
    assert len(estimator.samples) == 1


def test_what_cannot_be_predicted() -> None:
    estimator = PolynomialEstimator()
    with pytest.raises(BadSample, match="without samples"):
        estimator.predict((5,))
    estimator.add(LayerSample((5,), (1,)))
    with pytest.raises(BadSample, match="got 2 sizes; the samples have 1"):
        estimator.predict((5, 5))
    with pytest.raises(BadSample, match="each 1 or more"):
        estimator.predict((0,))
    with pytest.raises(ValueError, match="most_samples 0"):
        PolynomialEstimator(most_samples=0)
