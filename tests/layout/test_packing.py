"""How close the planners come on published instances and on steps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import generators
from drawn_layouts import FirstFit, random_layout_problem
from instruments.layout_problems import PUBLISHED, made_up_step, overlapping, published, read_published
from remat_compiler.ir.layout import Layout, LayoutProblem
from remat_compiler.simulate.verify_layout import layout_defects
from remat_passes.layout.exact import Exact
from remat_passes.layout.orders import first_fit, first_fits, orders
from remat_passes.layout.portfolio import Portfolio
from remat_passes.layout.units import Units, largest_live


def live_bytes(problem: LayoutProblem) -> int:
    return largest_live(Units.of(problem)) * problem.alignment_bytes


@pytest.mark.parametrize("name", ["F", "J", "K"])
def test_hard_instances_fit_their_capacity(name: str) -> None:
    capacity = 1_048_576
    problem = read_published(PUBLISHED / f"{name}.{capacity}.csv")
    layout = Exact(capacity_bytes=capacity).place(problem)
    assert layout_defects(problem, layout) == []
    assert layout.total_bytes <= capacity


def test_the_published_instances_are_all_there() -> None:
    known = {name: (capacity, live_bytes(problem)) for name, capacity, problem in published()}
    assert sorted(known) == list("ABCDEFGHIJK")
    others = {"C": 1_039_360, "D": 986_112, "J": 989_184}
    assert all(known[name] == (1_048_576, others.get(name, 1_048_576)) for name in known)


@pytest.mark.parametrize("size", [100, 1_000, 3_000])
def test_steps_are_packed_within_one_percent(size: int) -> None:
    problem = made_up_step(size)
    layout = Portfolio().place(problem)
    assert overlapping(problem, layout.offsets) == []
    assert live_bytes(problem) - problem.alignment_bytes < layout.total_bytes <= 1.01 * live_bytes(problem)


@given(rng=generators(), work=st.sampled_from([0, 10_000]))
def test_the_portfolio_is_never_worse_than_one_of_its_orders(rng: Random, work: int) -> None:
    problem = random_layout_problem(rng)
    units = Units.of(problem)
    best = min(units.height(offsets) for offsets in first_fits(units))
    total = Portfolio(work=work).place(problem).total_bytes
    assert largest_live(units) <= -(-total // problem.alignment_bytes) <= best


@given(rng=generators())
def test_the_second_order_begins_with_blocks_that_are_large_and_meet_many(rng: Random) -> None:
    units = Units.of(random_layout_problem(rng))
    spans = list(zip(units.start, units.stop))
    met = [sum(start < other_stop and other_start < stop for other_start, other_stop in spans) for start, stop in spans]
    _, order, _ = orders(units)
    weights = [units.size[block] * met[block] for block in order]
    assert weights == sorted(weights, reverse=True)


@given(rng=generators())
def test_first_fit_takes_the_lowest_place_that_is_free(rng: Random) -> None:
    problem = random_layout_problem(rng)
    units = Units.of(problem)
    in_turn = first_fit(units, np.arange(len(units)))
    blocks = tuple(block for block in problem.blocks if block.size_bytes)
    simple = FirstFit().place(replace(problem, blocks=blocks)).offsets
    assert tuple(in_turn * problem.alignment_bytes) == simple


@given(rng=generators(), shift=st.integers(-200, 200))
def test_the_sweep_finds_collisions_where_the_comparison_of_pairs_does(rng: Random, shift: int) -> None:
    problem = replace(random_layout_problem(rng), alignment_bytes=1)
    if not problem.blocks:
        return
    i = rng.randrange(len(problem.blocks))
    offsets = tuple(at + (shift if k == i else 0) for k, at in enumerate(FirstFit().place(problem).offsets))
    # An arena without end below and above: collisions alone are asked for.
    lifted = tuple(at + 200 for at in offsets)
    assert bool(overlapping(problem, offsets)) == bool(layout_defects(problem, Layout("x", lifted, 10**9)))
