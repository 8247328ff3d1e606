"""Arenas that are chosen: less is reserved with them than without, at every size that is looked at."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given

from builders import generators
from remat_compiler.ir.arenas import Allocations
from remat_compiler.ir.layout import Block
from remat_compiler.simulate.arenas import arena_defects, live_bytes, live_bytes_with, trace_with
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace, taken_bytes
from remat_passes.layout.grouping import joined
from remat_passes.layout.selection import choose_arenas, only

MIB = 2**20


def step_of(
    blocks: list[Block], others: list[Life], moments: int, state: tuple[int, ...] = ()
) -> tuple[Allocations, AllocationTrace]:
    """A step whose blocks may lie in arenas, and what it allocates."""
    lives = [Life(block.size_bytes, block.start, block.stop) for block in blocks]
    rows = sorted(enumerate([*lives, *others]), key=lambda row: row[1].made)
    position = {number: place for place, (number, _) in enumerate(rows)}
    other = [0] * moments
    for life in others:
        for t in range(life.made, moments if life.freed is None else life.freed):
            other[t] += life.size_bytes
    in_trace = tuple(position[i] for i in range(len(blocks)))
    step = Allocations(tuple(blocks), tuple(other), moments // 2, 64, in_trace)
    return step, AllocationTrace((), state, tuple(life for _, life in rows))


def random_step(rng: Random) -> tuple[Allocations, AllocationTrace]:
    moments = rng.randint(4, 24)
    blocks, others = [], []
    for _ in range(rng.randrange(20)):
        start = rng.randrange(moments)
        blocks.append(Block(start, rng.randint(start + 1, moments), 64 * rng.randint(1, 400_000)))
    for _ in range(rng.randrange(8)):
        start = rng.randrange(moments)
        others.append(Life(64 * rng.randint(1, 200_000), start, rng.choice([None, rng.randint(start + 1, moments)])))
    state = tuple(rng.randint(1, 2 * 10**7) for _ in range(rng.randrange(4)))
    return step_of(blocks, others, moments, state)


def shorter(trace: AllocationTrace) -> AllocationTrace:
    """The same step at half the size."""
    return replace(trace, lives=tuple(replace(life, size_bytes=(life.size_bytes + 1) // 2) for life in trace.lives))


@given(rng=generators())
def test_less_is_reserved_with_arenas_that_are_chosen(rng: Random) -> None:
    step, trace = random_step(rng)
    expandable = rng.random() < 0.5
    traces = [trace, shorter(trace)] if rng.random() < 0.5 else [trace]
    arenas = choose_arenas(step, traces, expandable)
    assert choose_arenas(step, traces, expandable) == arenas
    assert arena_defects(step, arenas) == []
    assert live_bytes_with(step, arenas).max(initial=0) <= live_bytes(step).max(initial=0)
    placed = [trace_with(one, step, arenas) for one in traces]
    fewer = []
    for stateless in (False, True):
        before, after = (
            taken_bytes([replace(one, state=()) if stateless else one for one in some], expandable)
            for some in (traces, placed)
        )
        assert after <= before
        fewer.append(after < before)
    assert any(fewer) == bool(arenas.sizes)


@given(rng=generators())
def test_a_trace_with_arenas_has_all_bytes_of_the_step(rng: Random) -> None:
    step, trace = random_step(rng)
    arenas = joined(step)
    total = [0] * len(step.other_bytes)
    for life in trace_with(trace, step, arenas).lives:
        for t in range(life.made, len(total) if life.freed is None else life.freed):
            total[t] += life.size_bytes
    assert total == live_bytes_with(step, arenas).tolist()


def test_values_that_lie_in_pieces_are_put_together() -> None:
    # Each value is a little larger than the one before, and finds no place in what that one left.
    blocks = [Block(t, t + 2, (12 + 3 * t) * MIB) for t in range(8)]
    step, trace = step_of(blocks, [], 9)
    # Two lie side by side in one arena of their largest sum; in segments of their own each third one fits nowhere.
    assert choose_arenas(step, [trace], expandable=False).sizes == ((12 + 18 + 12 + 21) * MIB,)


def test_nothing_is_placed_where_the_allocator_does_as_well() -> None:
    step, trace = step_of([Block(t, t + 1, 32 * MIB) for t in range(6)], [], 6)
    assert joined(step).sizes
    assert choose_arenas(step, [trace], expandable=False).sizes == ()


def test_arenas_can_be_left_out() -> None:
    step, _ = step_of([Block(0, 1, 64), Block(1, 2, 128)], [], 2)
    arenas = joined(step)
    assert only(arenas, [0]) == arenas
    assert only(arenas, []).arena_of == (-1, -1)
