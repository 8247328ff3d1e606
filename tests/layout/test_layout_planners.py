"""Every layout planner answers every problem without a defect; so does a made-up one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import generators
from drawn_layouts import MOMENTS, FirstFit, random_layout_problem
from remat_compiler.ir.layout import Block, Layout, LayoutPlanner, LayoutProblem
from remat_compiler.simulate.verify_layout import layout_defects
from remat_passes.layout.exact import Exact
from remat_passes.layout.portfolio import Portfolio

PLANNERS: list[LayoutPlanner] = [FirstFit(), Portfolio(), Exact()]


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: planner.name)
@given(rng=generators())
def test_every_layout_is_without_defects(planner: LayoutPlanner, rng: Random) -> None:
    problem = random_layout_problem(rng)
    layout = planner.place(problem)
    assert layout_defects(problem, layout) == []
    assert planner.place(problem) == layout
    assert layout.planner == planner.name
    assert pickle.loads(pickle.dumps(planner)) == planner
    live = [sum(b.size_bytes for b in problem.blocks if b.start <= t < b.stop) for t in range(MOMENTS)]
    assert layout.total_bytes >= max(live)


@given(rng=generators(), shift=st.integers(-200, 200))
def test_the_checker_finds_what_brute_force_finds(rng: Random, shift: int) -> None:
    """Each byte at each moment, after one block was moved."""
    problem = replace(random_layout_problem(rng), alignment_bytes=1)
    if not problem.blocks:
        return
    layout = FirstFit().place(problem)
    i = rng.randrange(len(problem.blocks))
    offsets = [at + (shift if k == i else 0) for k, at in enumerate(layout.offsets)]
    wrong = offsets[i] < 0 or any(at + b.size_bytes > layout.total_bytes for at, b in zip(offsets, problem.blocks))
    for moment in range(MOMENTS):
        taken = [
            byte
            for at, b in zip(offsets, problem.blocks)
            if b.start <= moment < b.stop
            for byte in range(at, at + b.size_bytes)
        ]
        wrong |= len(taken) != len(set(taken))
    assert bool(layout_defects(problem, replace(layout, offsets=tuple(offsets)))) == wrong


def test_defects_are_named() -> None:
    problem = LayoutProblem((Block(0, 2, 10), Block(1, 3, 10)))
    assert layout_defects(problem, Layout("x", (0,), 20)) == ["1 offsets for 2 blocks"]
    assert layout_defects(problem, Layout("x", (0, 0), 10)) == ["blocks 0 and 1 share bytes from 0 on"]
    for lives in ((Block(0, 2, 10), Block(1, 3, 10)), (Block(1, 3, 10), Block(0, 2, 10))):
        assert layout_defects(LayoutProblem(lives), Layout("x", (0, 0), 10)), "one moment in common is enough"
    for lives in ((Block(0, 1, 10), Block(1, 3, 10)), (Block(1, 3, 10), Block(0, 1, 10))):
        assert not layout_defects(LayoutProblem(lives), Layout("x", (0, 0), 10)), "the end of a life does not count"
    assert layout_defects(problem, Layout("x", (0, 32), 42)) == ["block 1 stands at 32, which is no multiple of 64"]
    assert layout_defects(problem, Layout("x", (0, 64), 70)) == ["block 1 ends at 74, beyond 70 bytes"]
