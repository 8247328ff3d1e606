"""What is foreseen for other sizes, and which of them are worth a variant."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders import chain
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.dynamic_shapes.variant import Use, Variant
from remat_compiler.dynamic_shapes.variant_value import CANDIDATES, REACH, ROOM, WORTH_IT, SizeCostModel
from remat_compiler.partition.result import Partition
from remat_compiler.simulate.timeline import simulate
from remat_compiler.torch_compat import InputSymbol
from remat_passes.planning.save_all import SaveAll

HERE = (100,)


class Proportional:
    """A peak that grows with the size."""

    def live_bytes(self, sizes: Sequence[int]) -> int:
        return 1_000 * sizes[0]


def trade_off(budget_part: float, upper: int | None = None) -> SizeCostModel:
    """Of a chain planned at size 100, under a part of its peak without a budget."""
    problem = chain(24)
    plan = SaveAll().plan(problem).plan
    assert plan is not None
    before = simulate(problem.graph, problem.costs, plan)
    one = SimpleNamespace(before=SimpleNamespace(timeline=before), problem=problem)
    symbol = InputSymbol("s0", "L['x'].size()[0]", 0, hint=7, signed=False, upper=upper)
    limit = int(budget_part * before.peak_bytes)
    return SizeCostModel(cast(Partition, one), cast(PeakFormula, Proportional()), [symbol], HERE, limit, "auto")


def use(size: int, added: float, calls: int = 10, step_s: float = 1.0) -> Use:
    """Calls at one size under a variant that adds `added`."""
    variant = Variant(lambda *_: None, lambda sizes: 0, added, (1_000,), "slow")
    made = Use((size,), variant, calls)
    made.time_step(step_s)
    return made


def test_nothing_is_added_where_all_fits() -> None:
    curve = trade_off(1.0)
    assert curve.added_at((100,)) == curve.added_at((40,)) == 0.0
    assert 0.0 < curve.added_at((130,)) <= curve.added_at((200,))


def test_sizes_for_which_no_plan_fits_are_infinitely_dear() -> None:
    assert trade_off(1.0).added_at((100_000,)) == float("inf")


def test_looks_ahead_as_far_as_costs_little_more() -> None:
    assert trade_off(1.0).sizes_ahead((40,)) == (int(40 * REACH[0]),)
    assert trade_off(0.3).sizes_ahead((100,))[0] < int(100 * REACH[0])
    assert trade_off(1.0, upper=50).sizes_ahead((40,)) == (50,)


def test_saves_what_the_uses_that_it_serves_would_not_have_recomputed() -> None:
    """Ten steps of 1 s of which a third is recomputation, at a size at which nothing need be."""
    curve = trade_off(1.0)
    uses = [use(60, 0.5), use(80, 0.5), use(90, 0.0)]
    assert curve.saved_s(uses, (80,)) == pytest.approx(20 / 3)
    assert curve.saved_s(uses, (60,)) == pytest.approx(10 / 3)
    assert curve.saved_s([use(60, WORTH_IT / 2)], (60,)) == 0.0


def test_the_best_sizes_leave_room_and_are_not_planned_twice() -> None:
    curve = trade_off(1.0)
    uses = [use(60, 0.5), use(90, 0.5, calls=1)]
    less_room = (int(90 * ROOM[1]),)
    assert curve.best(uses, []) == (less_room, pytest.approx(11 / 3))
    assert curve.best(uses, [less_room]) == ((int(60 * ROOM[0]),), pytest.approx(10 / 3))
    assert curve.best([use(60, 0.0)], []) == (None, 0.0)


def test_of_many_sizes_some_are_considered_the_largest_among_them() -> None:
    curve = trade_off(1.0)
    uses: list[Any] = [use(size, 0.5) for size in range(20, 80)]
    found = curve._candidates(uses)
    assert len(found) == CANDIDATES
    assert max(found) == (int(79 * ROOM[0]),)
