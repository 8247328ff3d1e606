"""The exact planner against exhaustive search, and what all searches of layouts keep."""

from __future__ import annotations

from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import generators
from remat_compiler.ir.layout import Block, LayoutProblem
from remat_compiler.simulate.verify_layout import layout_defects
from remat_passes.layout.canonical import FOUND, NONE
from remat_passes.layout.exact import Exact
from remat_passes.layout.minimise import ORDERS, Ranked, minimise
from remat_passes.layout.portfolio import Portfolio
from remat_passes.layout.sections import Sections, count_meetings, meetings, partitions
from remat_passes.layout.units import Units, largest_live

MOMENTS = 7


def tiny(rng: Random, most: int = 6) -> LayoutProblem:
    """A few blocks of few sizes, so that many fit exactly beside each other."""
    blocks = []
    for _ in range(rng.randint(1, most)):
        start = rng.randrange(MOMENTS)
        blocks.append(Block(start, rng.randint(start + 1, MOMENTS), rng.randint(1, 5)))
    return LayoutProblem(tuple(blocks), 1)


def smallest_arena(problem: LayoutProblem) -> int:
    """By every order in which blocks may be put at the lowest free place: one of them gives the smallest arena."""
    best = sum(block.size_bytes for block in problem.blocks)
    for order in permutations(problem.blocks):
        placed: list[tuple[Block, int]] = []
        for block in order:
            beside = [(at, at + b.size_bytes) for b, at in placed if b.start < block.stop and block.start < b.stop]
            free = (at for at in sorted({0, *(end for _, end in beside)}))
            place = next(at for at in free if all(at + block.size_bytes <= a or b <= at for a, b in beside))
            placed.append((block, place))
        best = min(best, max(at + block.size_bytes for block, at in placed))
    return best


@given(rng=generators())
def test_the_smallest_arena_is_found(rng: Random) -> None:
    problem = tiny(rng)
    layout = Exact().place(problem)
    assert layout_defects(problem, layout) == []
    assert layout.total_bytes == smallest_arena(problem)


@given(rng=generators(), keys=st.sampled_from(ORDERS))
def test_every_order_of_the_search_knows_whether_a_capacity_is_enough(rng: Random, keys: tuple[str, bool]) -> None:
    problem = tiny(rng)
    units, least = Units.of(problem), smallest_arena(problem)
    ranked = Ranked.by(*keys, units, Sections.of(units))
    for capacity in range(least + 3):
        answer, _, offsets = ranked.search(capacity, 10**9)
        assert answer == (FOUND if capacity >= least else NONE)
        if answer == FOUND:
            assert units.height(offsets) <= capacity
            assert layout_defects(problem, units.layout("x", offsets)) == []


@given(rng=generators(), work=st.integers(0, 3_000))
@settings(max_examples=50)
def test_a_search_that_ends_early_still_has_a_layout_and_a_bound(rng: Random, work: int) -> None:
    problem = tiny(rng, 12)
    units = Units.of(problem)
    above = np.cumsum(units.size) - units.size
    found, best = minimise(units, above, work), minimise(units, above, 10**9)
    assert layout_defects(problem, units.layout("x", found.offsets)) == []
    assert largest_live(units) <= found.bound <= best.height <= found.height <= units.height(above)
    assert best.bound == best.height


@given(rng=generators(), capacity=st.integers(1, 40))
def test_with_a_capacity_a_layout_within_it_is_enough(rng: Random, capacity: int) -> None:
    problem = tiny(rng)
    total = Exact(capacity_bytes=capacity).place(problem).total_bytes
    assert (total <= capacity) == (smallest_arena(problem) <= capacity)


@given(rng=generators(), alignment=st.sampled_from([1, 2, 4]))
def test_alignment_is_placing_by_whole_units(rng: Random, alignment: int) -> None:
    blocks = tiny(rng).blocks
    rounded = tuple(Block(b.start, b.stop, -(-b.size_bytes // alignment)) for b in blocks)
    total = Exact().place(LayoutProblem(blocks, alignment)).total_bytes
    assert -(-total // alignment) == smallest_arena(LayoutProblem(rounded, 1))


@given(rng=generators())
def test_sections_meet_where_lives_do(rng: Random) -> None:
    units = Units.of(tiny(rng, 9))
    sections = Sections.of(units)
    total = count_meetings(sections.first, sections.last)
    start, near = meetings(sections.first, sections.last, total)
    spans = list(zip(units.start, units.stop))
    for i, (a, b) in enumerate(spans):
        met = [j for j, (c, d) in enumerate(spans) if j != i and a < d and c < b]
        assert sorted(near[start[i] : start[i + 1]].tolist()) == met
    assert sections.totals(units.size).max() == largest_live(units)
    group = {i: number for number, part in enumerate(partitions(units)) for i in part.tolist()}
    assert sorted(group) == list(range(len(units)))
    assert all(group[i] == group[int(j)] for i in group for j in near[start[i] : start[i + 1]])


@pytest.mark.parametrize("planner", [Exact(), Portfolio()], ids=lambda planner: planner.name)
def test_blocks_that_touch_in_time_take_the_same_bytes(planner: Exact | Portfolio) -> None:
    problem = LayoutProblem((Block(0, 1, 100), Block(1, 2, 100), Block(2, 9, 128), Block(0, 9, 0)), 64)
    assert planner.place(problem).total_bytes == 128
    assert planner.place(LayoutProblem(())).total_bytes == 0
    assert planner.place(LayoutProblem((Block(0, 1, 0),))).offsets == (0,)


def test_sizes_beyond_a_device_are_exact() -> None:
    problem = LayoutProblem((Block(0, 2, 2**40 + 1), Block(1, 3, 2**41), Block(2, 4, 2**40)), 1)
    assert Exact().place(problem).total_bytes == 2**40 + 1 + 2**41
