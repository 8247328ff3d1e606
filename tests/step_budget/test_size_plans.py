"""What a graph of changing sizes may take in the steps that run it, and what it needs at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dynamic_shapes.made_up_graph import MadeUpGraph, native_bytes, whole
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.step_budget.size_plans import Continues, SizePlans, first_allowance
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.torch_compat import InputSymbol

LIMIT = native_bytes(100)


def graph(continues: Continues = Continues.NO, upper: int | None = None) -> SizePlans:
    """One that was compiled for a first call of size 100, which it fits without recomputation."""
    maker = MadeUpGraph().maker(LIMIT, on_infeasible="min")
    first = maker._first
    native = GraphMemory(LIMIT, LIMIT // 2, LIMIT, 1_000)
    one = SimpleNamespace(unchanged=False, memory_before=native)
    formula = SimpleNamespace(
        live_bytes=lambda sizes: native_bytes(sizes[0]),
        boundary_and_final_bytes=lambda sizes: (native_bytes(sizes[0]) // 2, 10 * sizes[0]),
    )
    made = Dispatch([0], whole(LIMIT), maker.variant(first, (100,), "first", whole(LIMIT)), maker, 6)
    shown = replace(first, partitions=(cast(Any, one),), formula=cast(Any, formula))
    symbol = InputSymbol("s0", "L['x'].size()[0]", 0, hint=100, signed=False, upper=upper)

    def input_bytes(positions: Sequence[int], sizes: Sequence[int]) -> int:
        return len(positions) * sizes[0]

    return SizePlans(made, shown, [symbol], continues, input_bytes)


@pytest.mark.parametrize(
    ("continues", "expected"),
    [
        (Continues.NO, Allowance(1_000, 1_000, 1_000)),
        (Continues.MAYBE, Allowance(1_000, 500, 1_000)),
        (Continues.YES, Allowance(250, 250, 250)),
    ],
)
def test_the_first_allowance_depends_on_whether_the_step_continues(continues: Continues, expected: Allowance) -> None:
    assert first_allowance(1_000, continues) == expected
    assert first_allowance(-5, continues).limit_bytes == 1, "a limit of nothing is still one byte to aim for"


def test_what_others_hold_is_left_alone_until_the_step_is_known() -> None:
    made = graph()
    made.dispatch(100)
    made.make_room(LIMIT, held_bytes=LIMIT // 4)
    assert made.dispatch.allowance == whole(LIMIT - LIMIT // 4)
    made.make_room(LIMIT, held_bytes=0)
    assert made.dispatch.allowance == whole(LIMIT), "nothing is held any more"


def test_before_its_first_call_there_is_no_room_to_make() -> None:
    made = graph()
    made.make_room(LIMIT, held_bytes=LIMIT // 4)
    assert made.dispatch.allowance == whole(LIMIT)


def test_of_several_kinds_of_steps_it_keeps_to_all() -> None:
    made = graph()
    made.dispatch(100)
    assert not made.shares_budget
    made.share(Allowance(800, 300, 500, (1, 2)), "one kind")
    made.share(Allowance(700, 400, 600, (2, 3)), "another")
    assert made.dispatch.allowance == Allowance(700, 300, 500, (2,))
    made.make_room(LIMIT, held_bytes=10)
    made.take_all(LIMIT)
    assert made.dispatch.allowance == Allowance(700, 300, 500, (2,)), "what steps need is known"
    made.share(Allowance(900, 900, 900), "one kind")
    assert made.dispatch.allowance == Allowance(700, 400, 600), "of one kind of step the latest counts"


def test_alone_it_takes_all() -> None:
    made = graph(Continues.MAYBE)
    made.dispatch(100)
    made.make_room(LIMIT, held_bytes=LIMIT // 4)
    made.take_all(LIMIT)
    assert made.dispatch.allowance == whole(LIMIT)


def test_its_memory_grows_as_the_formula_says_up_to_the_largest_size() -> None:
    factor, left = graph().grown([], 1.5)
    assert (factor, left) == (1.5, 1_500)
    assert graph().grown([4, 5], 1.5) == (1.5, 1_500 - 2 * 150), "gradients that are passed on count elsewhere"
    assert graph(upper=120).grown([], 1.5) == (1.2, 1_200)


def test_without_a_formula_it_grows_with_the_product_of_the_sizes() -> None:
    made = graph()
    made.first = replace(made.first, formula=None)
    assert made.factor_at((250,)) == 2.5
    assert made.grown([], 2.0) == (2.0, 2_000)
