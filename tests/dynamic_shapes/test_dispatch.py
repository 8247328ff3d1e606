"""The choice among variants: the cheapest that fits, made when needed, improved when that pays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamic_shapes.made_up_variants import WHOLE, Prepared, Proportional, variant
from remat_compiler.dynamic_shapes import dispatch
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.variant import PAUSE, Variant
from remat_compiler.step_model.allowance import Allowance


class Endless(Prepared):
    """What is needed is always the same one."""

    def __init__(self, last: Variant, better: list[Variant], threshold_s: float) -> None:
        super().__init__(better=better, threshold_s=threshold_s)
        self.last = last

    def variants_for(
        self, sizes: tuple[int, ...], variants: Sequence[Variant], allowance: Allowance
    ) -> Sequence[Variant]:
        return [self.last]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def labels(made: Dispatch, sizes: Sequence[int]) -> list[str]:
    """What runs calls of these sizes."""
    return [made(size, "x")[0] for size in sizes]


def test_the_cheapest_that_fits_runs() -> None:
    provider = Prepared(needed=[variant("small", 2, 0.5)])
    made = Dispatch([0], WHOLE, variant("native", 10), provider, 6)
    assert labels(made, [50, 100, 101, 500, 100]) == ["native", "native", "small", "small", "native"]
    assert provider.asked == [(101,)]
    assert made(7, "x") == ("native", (7, "x"))


def test_several_sizes_are_one_key() -> None:
    made = Dispatch([1, 0], WHOLE, variant("native", 1), Prepared(needed=[variant("small", 0, 0.1)]), 6)
    assert made(10, 100)[0] == "native"
    assert made(11, 100)[0] == "small"
    assert {use.sizes for use in made.uses} == {(100, 10), (100, 11)}


def test_unknown_peaks_do_not_fit() -> None:
    unknown = Variant(lambda *_: ("unknown", ()), Proportional(None), 0.0, (1,), "unknown")
    made = Dispatch([0], WHOLE, unknown, Prepared(needed=[variant("known", 1, 0.9)]), 6)
    assert labels(made, [3]) == ["known"]


def test_what_fits_nowhere_still_runs_and_is_asked_for_once_a_size() -> None:
    provider = Prepared(needed=[variant("least", 20, 0.5)])
    made = Dispatch([0], WHOLE, variant("native", 100), provider, 6)
    assert labels(made, [60, 60, 60]) == ["least"] * 3
    assert provider.asked == [(60,)]


def test_the_least_used_gives_way() -> None:
    provider = Prepared(needed=[variant("b", 5, 0.2), variant("c", 1, 0.3)])
    made = Dispatch([0], WHOLE, variant("a", 10), provider, 2)
    labels(made, [10, 10, 150])
    assert labels(made, [900, 10]) == ["c", "a"]
    assert [v.label for v in made.variants] == ["a", "c"]


def test_improves_when_recomputation_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 s under a variant that adds a half lose a third of a second each."""
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    provider = Prepared(better=[variant("better", 6, 0.1)], threshold_s=1.9)
    made = Dispatch([0], WHOLE, variant("slow", 1, 0.5), provider, 6)
    ran = []
    for _ in range(9):
        ran.append(made(100, "x")[0])
        clock.now += 1.0
    assert ran == ["slow"] * 6 + ["better"] * 3


def full_of_variants(monkeypatch: pytest.MonkeyPatch, better: Variant) -> tuple[Dispatch, Prepared, Clock]:
    """Three variants, as many as there may be, after one step of each length 10, 50 and 500 that takes 1 s."""
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    provider = Prepared(needed=[variant("b", 5, 1.0), variant("c", 2, 3.0)], better=[better])
    made = Dispatch([0], WHOLE, variant("a", 100), provider, 3)
    for length in [10, 50, 500]:
        made(length, "x")
        clock.now += 1.0
    provider.threshold_s = 0.0
    return made, provider, clock


def test_what_is_missed_least_gives_way_to_what_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without b, the step of 0.5 s and as much again would have taken 1.0 s more under c."""
    made, provider, _ = full_of_variants(monkeypatch, variant("d", 4, 0.5))
    assert labels(made, [50, 10, 500]) == ["d", "a", "c"]
    assert provider.lost_s[0] == pytest.approx(1.0)
    assert [v.label for v in made.variants] == ["a", "c", "d"]


def test_nothing_that_is_needed_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one recomputes nothing and the other alone fits."""
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    provider = Prepared(needed=[variant("b", 5, 1.0)], better=[variant("c", 4, 0.5)])
    made = Dispatch([0], WHOLE, variant("a", 100), provider, 2)
    provider.threshold_s = 0.0
    for length in [10, 150, 150, 10, 150]:
        made(length, "x")
        clock.now += 1.0
    assert set(provider.lost_s) == {float("inf")}
    assert {v.label for v in made.variants} == {"a", "b"}


def test_one_variant_may_be_all_there_is() -> None:
    provider = Prepared(needed=[variant("b", 5, 1.0), variant("c", 1, 2.0)])
    made = Dispatch([0], WHOLE, variant("a", 100), provider, 1)
    assert labels(made, [50, 500, 50]) == ["b", "c", "c"]
    assert len(made.variants) == 1


def test_pauses_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    made = Dispatch([0], WHOLE, variant("slow", 1, 1.0), Prepared(threshold_s=100.0), 6)
    for pause in [1.0, 1.0, 1_000.0, 1.0, 1.0]:
        made(10, "x")
        clock.now += pause
    made(10, "x")
    assert made.uses[0].added_s == pytest.approx((4 + PAUSE) / 5 / 2)


def test_variants_that_add_nothing_are_not_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(dispatch, "time", clock)
    made = Dispatch([0], WHOLE, variant("native", 1), Prepared(better=[variant("no", 1)], threshold_s=0.0), 6)
    for _ in range(5):
        clock.now += 10.0
        assert made(10, "x")[0] == "native"


def test_sizes_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_SIZES", 10)
    made = Dispatch([0], WHOLE, variant("native", 1), Prepared(), 6)
    labels(made, range(1, 100))
    assert len(made.uses) <= 10


def test_under_a_smaller_allowance_the_sizes_that_no_longer_fit_are_decided_when_they_come_again() -> None:
    provider = Prepared(needed=[variant("small", 2, 0.5)])
    made = Dispatch([0], WHOLE, variant("native", 10), provider, 6)
    labels(made, [40, 90])
    made.allow(Allowance.whole(500))
    assert provider.changed == [Allowance.whole(500)]
    assert {use.sizes for use in made.uses} == {(40,)}
    assert labels(made, [40, 90]) == ["native", "small"]
    assert provider.asked == [(90,)]


def test_under_a_larger_allowance_what_is_better_runs_from_then_on() -> None:
    provider = Prepared(better=[variant("better", 20, 0.1)])
    made = Dispatch([0], Allowance.whole(500), variant("small", 2, 0.5), provider, 6)
    assert labels(made, [40]) == ["small"]
    made.allow(WHOLE)
    assert labels(made, [40]) == ["better"]


def test_what_is_held_while_other_graphs_run_counts_under_a_share() -> None:
    """Of 900 bytes the share allows 100 to be held: 600 that peak and hold 120 exceed it, 400 that hold 80 do not."""
    native = Variant(lambda *_: ("native", ()), Proportional(10, held=0.2), 0.0, (1,), "native")
    provider = Prepared(needed=[variant("small", 2, 0.5)])
    made = Dispatch([0], Allowance(900, 100, 900), native, provider, 6)
    assert labels(made, [40, 60]) == ["native", "small"]
    assert native.needed_bytes((60,), made.allowance) == 920
    assert native.needed_bytes((60,), WHOLE) == 600


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 2)), min_size=1, max_size=6),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=30),
)
def test_what_runs_fits_and_nothing_cheaper_does(kinds: list[tuple[int, float]], sizes: list[int]) -> None:
    """Whatever the variants and the order of the sizes."""
    variants = [variant(str(i), unit, added) for i, (unit, added) in enumerate(kinds)]
    last = variant("least", 0, 9.0)
    provider = Prepared(needed=[*variants[1:], last])
    made = Dispatch([0], WHOLE, variants[0], provider, 99)
    for size in sizes:
        label = made(size)[0]
        chosen = next(v for v in [*variants, last] if v.label == label)
        assert chosen.fits((size,), WHOLE)
        assert not [v for v in made.variants if v.fits((size,), WHOLE) and v.added < chosen.added]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 2)), min_size=4, max_size=8),
    st.lists(st.tuples(st.integers(1, 2_000), st.floats(0, 3)), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_whatever_gives_way_each_call_fits(
    kinds: list[tuple[int, float]], calls: list[tuple[int, float]], most: int
) -> None:
    """Variants that are needed and better ones come in turn, more than there may be."""
    variants = [variant(str(i), unit, added) for i, (unit, added) in enumerate(kinds)]
    last = variant("least", 0, 9.0)
    provider = Endless(last, better=variants[2:], threshold_s=0.0)
    made = Dispatch([0], WHOLE, variants[0], provider, most)
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "time", clock)
        for size, seconds in calls:
            label = made(size)[0]
            clock.now += seconds
            assert len(made.variants) <= most
            chosen = next(v for v in [*variants, last] if v.label == label)
            assert chosen.fits((size,), WHOLE)
            assert chosen in made.variants
    assert len(made.variants) == len(set(made.variants))
