"""Arenas: no defects, no higher peak, few of them where nothing stands against it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given

from builders import generators
from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.layout import Block
from remat_compiler.simulate.arenas import arena_defects, arena_lives, live_bytes, live_bytes_with
from remat_passes.layout.grouping import joined


def random_step(rng: Random) -> Allocations:
    moments = rng.randint(2, 30)
    blocks = []
    for _ in range(rng.randrange(25)):
        start = rng.randrange(moments)
        blocks.append(Block(start, rng.randint(start + 1, moments), 64 * rng.randint(1, 9)))
    other = tuple(rng.randrange(2_000) for _ in range(moments))
    return Allocations(tuple(blocks), other, rng.randrange(1, moments), 64)


@given(rng=generators())
def test_arenas_have_no_defects_and_the_step_peaks_no_higher(rng: Random) -> None:
    step = random_step(rng)
    arenas = joined(step)
    assert arena_defects(step, arenas) == []
    assert live_bytes_with(step, arenas).max() <= live_bytes(step).max()
    assert joined(step) == arenas
    assert all(len(arenas.members(arena)) > 1 for arena in range(len(arenas.sizes)))


@given(rng=generators())
def test_lives_of_arenas_are_what_counts(rng: Random) -> None:
    step = random_step(rng)
    arenas = joined(step)
    total = list(step.other_bytes)
    for block, arena in zip(step.blocks, arenas.arena_of):
        for t in range(block.start, block.stop) if arena < 0 else ():
            total[t] += block.size_bytes
    for arena in range(len(arenas.sizes)):
        for life in arena_lives(step, arenas, arena):
            assert life.freed is not None
            for t in range(life.made, life.freed):
                total[t] += life.size_bytes
    assert total == live_bytes_with(step, arenas).tolist()


def test_values_in_turn_share_one_arena() -> None:
    step = Allocations(tuple(Block(t, t + 1, 640) for t in range(6)), (0,) * 6, 3, 64)
    assert joined(step) == Arenas((640,), (0,) * 6, (0,) * 6)


def test_an_arena_is_not_kept_while_gradients_grow() -> None:
    # Two saved values die one after the other, and what stays takes their bytes.
    step = Allocations((Block(0, 3, 640), Block(1, 2, 640)), (0, 0, 640, 1280), 2, 64)
    assert joined(step).sizes == ()
    room = replace(step, other_bytes=(0, 0, 0, 1280))
    assert joined(room).sizes == (1280,)


def test_defects_are_named() -> None:
    step = Allocations((Block(0, 2, 64), Block(1, 3, 64)), (0,) * 3, 1, 64)
    assert "share bytes" in arena_defects(step, Arenas((64,), (0, 0), (0, 0)))[0]
    assert "does not exist" in arena_defects(step, Arenas((64,), (0, 1), (0, 0)))[0]
    assert "beyond" in arena_defects(step, Arenas((64,), (0, 0), (0, 64)))[0]
    assert arena_defects(step, Arenas((64,), (0,), (0,))) == ["1 arenas and 1 offsets for 2 blocks"]
    assert arena_defects(step, Arenas((), (-1, -1), (0, 0))) == []
