"""Which variants are compiled, and when, on a made-up compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dynamic_shapes.made_up_graph import LEAST, MadeUpGraph, native_bytes, whole
from made_up_allocator import MadeUpAllocator
from remat_compiler import torch_compat
from remat_compiler.compilation import lateness
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.distributed.agreement import Alone, Point, Value
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.variant import Use, Variant
from remat_compiler.dynamic_shapes.variant_maker import BACKOFF, VariantMaker
from remat_compiler.dynamic_shapes.variant_store import LARGER_SIZES
from remat_compiler.errors import InfeasibleBudget, UnservedSizes
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session
from remat_compiler.step_model.allowance import Allowance

LIMIT = native_bytes(100)
"""What the step takes at size 100 without a budget."""
LARGEST = int(100 / LEAST)
"""The largest size for which there is a plan within it."""


def first_of(maker: VariantMaker, limit_bytes: int = LIMIT) -> Variant:
    """The variant of the first call."""
    return maker.variant(maker._first, maker.first_sizes, "first", whole(limit_bytes))


def use(size: int, variant: Variant, calls: int = 10, step_s: float = 1.0) -> Use:
    """Calls at one size."""
    made = Use((size,), variant, calls)
    made.time_step(step_s)
    return made


def labels(variants: Sequence[Variant]) -> list[str]:
    return [variant.label for variant in variants]


def test_sizes_that_nothing_fits_get_a_plan_for_larger_ones() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT)
    made = maker.variants_for((110,), [first_of(maker)], whole(LIMIT))
    assert labels(made) == [LARGER_SIZES]
    (size,) = graph.sizes()
    assert 110 < size <= 220
    assert made[-1].fits((110,), whole(LIMIT))
    (request,) = graph.requests
    assert (request.take_smallest, request.free_layout, request.budget_bytes) == (True, False, LIMIT)
    assert graph.reported == [f"a variant of the graph, planned for x.shape[0] = {size} ({LARGER_SIZES})"]


def test_within_its_reach_no_more_is_planned_ahead() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT)
    first = first_of(maker)
    maker.variants_for((110,), [first], whole(LIMIT))
    reach = graph.sizes()[0]
    maker.variants_for((reach,), [first], whole(LIMIT))
    assert graph.sizes() == [reach, reach], "within the reach there is a plan for the very sizes, nothing larger"


def test_never_beyond_the_largest_sizes_that_may_come() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT, upper=115)
    maker.variants_for((110,), [first_of(maker)], whole(LIMIT))
    assert graph.sizes() == [115]


def test_where_even_the_larger_plan_does_not_fit_there_is_one_for_the_sizes_themselves() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT)
    size = LARGEST - 2
    made = maker.variants_for((size,), [first_of(maker)], whole(LIMIT))
    assert made[-1].fits((size,), whole(LIMIT))
    assert graph.sizes()[0] > size
    if len(graph.sizes()) == 2:
        assert (labels(made), graph.sizes()[1]) == ([LARGER_SIZES, "needed"], size)


def test_what_is_refused_is_refused_again_without_planning_until_the_allowance_changes() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT, on_infeasible="error")
    first, size = first_of(maker), LARGEST + 40
    messages = []
    for _ in range(2):
        with pytest.raises(InfeasibleBudget) as refused:
            maker.variants_for((size,), [first], whole(LIMIT))
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert graph.sizes().count(size) >= 1
    assert maker._refused[size,].__traceback__ is None, "it would hold on to the step that failed"
    maker.after_change([first], whole(LIMIT), whole(2 * LIMIT))
    assert maker.variants_for((size,), [first], whole(2 * LIMIT))[-1].fits((size,), whole(2 * LIMIT))


def test_where_the_smallest_peak_may_be_taken_it_serves_all_larger_sizes_at_once() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT, on_infeasible="min")
    variants = [first_of(maker)]
    variants += maker.variants_for((LARGEST + 40,), variants, whole(LIMIT))
    before = len(graph.requests)
    (again,) = maker.variants_for((LARGEST + 80,), variants, whole(LIMIT))
    assert len(graph.requests) == before
    needed = [variant.needed_bytes((LARGEST + 80,), whole(LIMIT)) or 0 for variant in variants]
    assert again is variants[needed.index(min(needed))]


def test_a_refusal_of_a_share_names_the_whole_budget() -> None:
    maker = MadeUpGraph().maker(LIMIT, on_infeasible="error")
    share = Allowance(LIMIT // 8, LIMIT // 8, LIMIT // 8)
    with pytest.raises(InfeasibleBudget, match="other graphs of the step") as refused:
        maker.variants_for((100,), [first_of(maker)], share)
    assert refused.value.budget_bytes == LIMIT


LEAVING = Allowance(LIMIT, LIMIT, 999)
"""What it leaves behind may take 999 bytes."""


def test_what_no_plan_can_leave_behind_in_less_is_refused() -> None:
    maker = MadeUpGraph(left_bytes=1_000).maker(LIMIT, on_infeasible="error")
    with pytest.raises(InfeasibleBudget, match="leaves behind") as refused:
        maker.variants_for((90,), [first_of(maker)], LEAVING)
    assert refused.value.smallest_peak_bytes == LIMIT + 1


def test_or_runs_where_the_smallest_peak_may_be_taken() -> None:
    maker = MadeUpGraph(left_bytes=1_000).maker(LIMIT, on_infeasible="min")
    assert maker.variants_for((90,), [first_of(maker)], LEAVING)[-1].needed_bytes((90,), LEAVING) == LIMIT + 1


def test_a_variant_whose_sizes_are_restricted_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    graph = MadeUpGraph(assumed=None)
    maker = graph.maker(LIMIT)
    first = first_of(maker)
    assert not first.fits((1,), whole(LIMIT))
    assert "its sizes are restricted" in caplog.text
    with pytest.raises(UnservedSizes, match=r"got x\.shape\[0\] = 110"):
        maker.variants_for((110,), [first], whole(LIMIT))


def test_assumptions_of_compilers_are_conditions_of_the_variant() -> None:
    maker = MadeUpGraph(assumed=("s0 % 2 == 0",)).maker(LIMIT)
    first = first_of(maker)
    assert [first.fits((size,), whole(LIMIT)) for size in (98, 99, 100, 102)] == [True, False, True, False]


def slow_first(graph: MadeUpGraph, **options: Any) -> tuple[VariantMaker, Variant]:
    """A first call at size 200, half of which is over the budget; it serves smaller sizes and recomputes at all."""
    maker = graph.maker(LIMIT, first_size=200, **options)
    first = first_of(maker)
    assert first.added == pytest.approx(0.5)
    return maker, first


def test_what_saves_more_than_a_compilation_is_compiled() -> None:
    graph = MadeUpGraph()
    maker, first = slow_first(graph)
    made = maker.better_variant([use(80, first, calls=10)], [first], None, whole(LIMIT))
    assert made is not None
    assert (made.label, made.added) == ("better", 0.0)
    assert made.fits((80,), whole(LIMIT))
    assert graph.reported[-1].endswith("(better)")


def test_what_saves_less_than_a_compilation_waits_twice_as_long() -> None:
    graph = MadeUpGraph()
    maker, first = slow_first(graph)
    assert maker.threshold_s == maker.compile_s == 1.0
    assert maker.better_variant([use(80, first, calls=1)], [first], None, whole(LIMIT)) is None
    assert not graph.requests
    assert maker.threshold_s == BACKOFF * 1.0


def test_what_has_to_give_way_counts_against_what_is_saved() -> None:
    maker, first = slow_first(MadeUpGraph())
    uses = [use(80, first, calls=10)]
    assert maker.better_variant(uses, [first], 10.0, whole(LIMIT)) is None
    assert maker.better_variant(uses, [first], 0.5, whole(LIMIT)) is not None


@pytest.mark.parametrize(("pays", "is_made"), [(0.0, True), (float("inf"), False)])
def test_what_has_to_pay_nothing_is_compiled_as_soon_as_it_saves_anything(
    pays: float, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VariantMaker, "pays", pays)
    maker, first = slow_first(MadeUpGraph())
    assert maker.threshold_s == pays
    made = maker.better_variant([use(80, first, calls=1, step_s=0.01)], [first], None, whole(LIMIT))
    assert (made is not None) == is_made


def test_sizes_are_not_compiled_for_twice() -> None:
    graph = MadeUpGraph()
    maker, first = slow_first(graph)
    uses = [use(80, first, calls=10)]
    made = maker.better_variant(uses, [first], None, whole(LIMIT))
    assert made is not None
    assert maker.better_variant(uses, [first, made], None, whole(LIMIT)) is None
    assert len(graph.requests) == 1


def test_the_next_process_compiles_for_the_same_sizes_without_waiting(tmp_path: Path) -> None:
    maker, first = slow_first(MadeUpGraph(), directory=tmp_path)
    made = maker.better_variant([use(80, first, calls=10)], [first], None, whole(LIMIT))
    assert made is not None
    again = MadeUpGraph()
    maker, first = slow_first(again, directory=tmp_path)
    assert maker.threshold_s == 0.0
    found = maker.better_variant([use(79, first, calls=1, step_s=0.01)], [first], None, whole(LIMIT))
    assert found is not None
    assert found.sizes == made.sizes


def test_more_room_gives_the_first_sizes_a_better_variant_once() -> None:
    graph = MadeUpGraph()
    maker, first = slow_first(graph)
    better = maker.after_change([first], whole(LIMIT), whole(native_bytes(200)))
    assert better is not None
    assert (better.label, better.added) == ("first", 0.0)
    assert maker.after_change([first, better], whole(LIMIT), whole(native_bytes(200))) is None
    assert graph.sizes() == [200]


def test_less_room_makes_nothing_ahead_of_a_call() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT, first_size=105)
    first = first_of(maker)
    assert maker.after_change([first], whole(LIMIT), whole(LIMIT // 2)) is None
    assert not graph.requests


def test_what_a_measured_step_took_more_is_left_free_by_later_plans() -> None:
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT)
    maker.margin.learn(LIMIT // 2, LIMIT // 2 + 1_000)
    made = maker.variants_for((150,), [first_of(maker)], whole(LIMIT))
    assert graph.requests[0].budget_bytes is not None
    assert graph.requests[0].budget_bytes + 1_000 <= LIMIT
    assert made[-1].margin == maker.margin
    assert made[-1].margin is not maker.margin, "what it learns is its own"


@dataclass
class OtherRank(Alone):
    """Wants a variant for other sizes."""

    wants: tuple[int, ...] | None

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        assert question()
        agreed: Any = self.wants if point is Point.VARIANT else value
        return agreed  # type: ignore[no-any-return]


@pytest.mark.parametrize("wants", [(60,), None])
def test_ranks_compile_better_variants_for_the_sizes_agreed_on(wants: tuple[int, ...] | None) -> None:
    graph = MadeUpGraph()
    maker, first = slow_first(graph, session=Session(agreement=OtherRank(wants)))
    made = maker.better_variant([use(80, first, calls=10)], [first], None, whole(LIMIT))
    assert graph.sizes() == ([] if wants is None else [60])
    assert (None if made is None else made.sizes) == wants


def test_a_dispatch_keeps_its_allowance_for_the_maker_and_the_variants(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes seen under all of the budget are decided again under a share of it, by what is compiled for the share."""
    caplog.set_level(logging.INFO, logger="remat_compiler")
    graph = MadeUpGraph()
    maker = graph.maker(LIMIT)
    made = Dispatch([0], whole(LIMIT), first_of(maker), maker, 6)
    assert made.prepare((100,)).added == 0.0
    share = Allowance(LIMIT, LIMIT // 4, LIMIT)
    made.allow(share)
    running = made.prepare((100,))
    assert running.added > 0.0
    assert graph.requests[-1].between_bytes == share.between_bytes
    assert running.fits((100,), made.allowance)
    made.allow(whole(LIMIT))
    assert made.prepare((100,)).added == 0.0


def test_a_formula_leaves_room_for_what_blocks_may_take_beyond_what_was_seen() -> None:
    maker = MadeUpGraph().maker(LIMIT, estimator="symbolic")
    slack_bytes = 1000
    check = replace(maker._first.check, requested_bytes=maker._first.check.peak_bytes - slack_bytes)
    attempt = replace(maker._first, check=check, formula=PeakFormula(("s0",), (), (), (), (), lambda _: nullcontext()))
    more_bytes = attempt.check.more_blocks_bytes
    assert more_bytes > 0
    known: Any = maker._known(attempt, maker.first_sizes)
    assert known._slack_bytes == slack_bytes + more_bytes


def test_a_variant_gives_back_what_compiling_it_reserved_and_is_told_of_if_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Reserving(MadeUpGraph):
        def compile_(self, request: PartitionRequest, real: bool = True) -> Attempt:
            allocator.measure_with(90)
            return super().compile_(request, real)

    allocator = MadeUpAllocator(monkeypatch, 10, allocated=10)
    maker = Reserving().maker(LIMIT)
    first = first_of(maker)
    allocator.empty_cache()
    monkeypatch.setattr(torch_compat, "default_timeout_s", lambda: 1e-9)
    lateness._warn.cache_clear()
    maker.variants_for((110,), [first], whole(LIMIT))
    assert allocator.reserved == 10
    assert "communication of the default group fails after" in caplog.text
