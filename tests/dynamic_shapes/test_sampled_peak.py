"""The peak learnt from a few dry runs: exact for polynomials, never low at what was not seen, asked for outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.dynamic_shapes.sampled_peak import DOUBT, SampledPeak

NOWHERE = 0
"""A budget that no prediction is near to."""
Heights = Callable[[Sequence[int]], list[int]]


def run_of(heights: Heights) -> Callable[[Sequence[int]], DryRun]:
    """Dry runs of a step whose moments have these heights."""

    def check_at(sizes: Sequence[int]) -> DryRun:
        moments = tuple(MemorySample("forward", "op", 0, "", height, 0) for height in heights(sizes))
        return DryRun(max(heights(sizes), default=0), moments)

    return check_at


def bent(sizes: Sequence[int]) -> list[int]:
    """Moments that take each other's place at the peak: a line, a parabola and a constant."""
    (n,) = sizes
    return [1_000 * n + 7, 9 * n * n, 20_000]


def test_exact_where_the_peak_bends() -> None:
    learnt = SampledPeak(run_of(bent))
    for n in (10, 300, 50, 120, 20, 90, 200, 250, 150, 30):
        assert learnt.peak_bytes((n,), NOWHERE) == max(bent((n,)))
    assert learnt.checks == 10
    for n in range(10, 301):
        assert learnt.peak_bytes((n,), NOWHERE) == pytest.approx(max(bent((n,))), abs=2)
        assert (learnt.peak_bytes((n,), NOWHERE) or 0) >= max(bent((n,)))
    assert learnt.checks == 10


def test_outside_of_what_was_seen_it_is_checked() -> None:
    learnt = SampledPeak(run_of(bent), most_samples=3)
    for n in (10, 20, 30):
        learnt.peak_bytes((n,), NOWHERE)
    assert learnt.peak_bytes((500,), NOWHERE) == max(bent((500,)))
    assert learnt.checks == 4
    learnt.peak_bytes((500,), NOWHERE)
    assert learnt.checks == 4


def test_unknown_stays_unknown() -> None:
    learnt = SampledPeak(lambda sizes: DryRun(unknown="data"))
    assert learnt.peak_bytes((3,), NOWHERE) is None


def test_steps_of_other_moments_are_no_samples() -> None:
    """What cannot be fitted together is checked each time."""
    learnt = SampledPeak(run_of(lambda sizes: [100] * sizes[0]), most_samples=2)
    assert [learnt.peak_bytes((n,), NOWHERE) for n in (1, 2, 3, 4)] == [100] * 4
    assert learnt.checks == 4


def test_near_the_budget_it_is_checked() -> None:
    """Something that no polynomial tells: every third size takes 4 % more."""

    def uneven(sizes: Sequence[int]) -> list[int]:
        (n,) = sizes
        return [1_000 * n + (40 * n if n % 3 == 0 else 0)]

    budget = 250_000
    learnt = SampledPeak(run_of(uneven))
    for n in (10, 100, 200, 298, 50, 151, 250, 79, 280, 31):
        learnt.peak_bytes((n,), budget)
    for n in range(10, 299):
        foreseen = learnt.peak_bytes((n,), budget) or 0
        assert foreseen > budget or uneven((n,))[0] <= budget
    assert learnt.peak_bytes((240,), budget) == uneven((240,))[0]
    assert learnt.checks < 10 + DOUBT * 289 + 2
