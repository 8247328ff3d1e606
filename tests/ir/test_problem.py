"""Times of copies by their size."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from builders import generators
from moving_problems import drawn_curve
from remat_compiler.ir.plan import Tier
from remat_compiler.ir.problem import CopyTime, Link

CURVE = Link(Tier.HOST, 10**9, 5 * 10**8, 10, 0, (CopyTime(100, 20, 40), CopyTime(300, 120, 40)))


def test_times_lie_on_the_lines_between_measured_ones() -> None:
    assert [CURVE.out_ns(size) for size in (0, 50, 100, 200, 300, 1300)] == [10, 15, 20, 70, 120, 1120]
    assert [CURVE.back_ns(size) for size in (0, 50, 100, 200, 300, 800)] == [10, 25, 40, 40, 40, 1040]
    plain = replace(CURVE, curve=())
    assert [plain.out_ns(size) for size in (0, 100, 1000)] == [10, 110, 1010]


@given(rng=generators(), sizes=st.lists(st.integers(0, 500), min_size=2, max_size=20))
def test_larger_copies_take_no_less_and_none_beats_the_highest_rate(rng: Random, sizes: list[int]) -> None:
    latency_ns = rng.randrange(20)
    link = Link(Tier.HOST, rng.randint(1, 10**10), rng.randint(1, 10**10), latency_ns, 0, drawn_curve(rng, latency_ns))
    for time_of, most in ((link.out_ns, link.most_out_bytes_per_s), (link.back_ns, link.most_back_bytes_per_s)):
        times = [time_of(size) for size in sorted(sizes)]
        assert times == sorted(times)
        # Each time is rounded down by less than a nanosecond.
        assert sum(sizes) * 10**9 <= most * (sum(times) + len(sizes))
