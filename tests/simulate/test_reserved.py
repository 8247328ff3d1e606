"""What is reserved for a step: figures known by hand, and what holds for any step."""

from __future__ import annotations

from random import Random

from hypothesis import given

from builders import generators
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace, figures_of_steps, in_use, reserved_bytes, reserved_figures
from remat_compiler.units import rounded_up

MIB = 2**20


def trace(
    *lives: Life, resident: tuple[int, ...] = (), state: tuple[int, ...] = (), kept: tuple[Life, ...] = ()
) -> AllocationTrace:
    return AllocationTrace(resident, state, lives, kept)


def test_a_step_in_one_piece_takes_its_segment() -> None:
    # 30 MiB have a segment of their own, and what comes after them takes it over.
    figures = reserved_figures(trace(Life(30 * MIB, 0, 1), Life(12 * MIB, 1, 2), Life(18 * MIB, 1, 2)))
    assert (figures.allocated_bytes, figures.reserved_bytes) == (30 * MIB, 30 * MIB)
    # Segments that expand grow by pages of 20 MiB.
    assert figures.expandable_bytes == 40 * MIB


def test_what_lies_between_keeps_memory_in_pieces() -> None:
    # 11 MiB free, one page in use, 11 MiB free: 22 MiB at once find no place.
    lives = (Life(22 * MIB, 0, 1), Life(11 * MIB, 1, 3), Life(2 * MIB, 2, 5), Life(22 * MIB, 3, 4))
    figures = reserved_figures(trace(*lives))
    assert figures.allocated_bytes == 24 * MIB
    assert figures.reserved_bytes == 44 * MIB
    assert figures.expandable_bytes == 40 * MIB


def test_what_is_resident_lies_in_whole_blocks() -> None:
    # Two weights fill a segment of 20 MiB: what they leave of it is too small to become a block of its own.
    blocks = in_use(trace(Life(4 * MIB, 0, 1), resident=(19 * MIB // 2,) * 2), expandable=False)
    assert (blocks.above_bytes, blocks.all_bytes) == (4 * MIB, 24 * MIB)


def test_what_is_resident_counts_apart_and_the_state_takes_what_is_free() -> None:
    # Of the 20 MiB that a step frees, 14 become the optimizer's state; the next step needs new ones.
    figures = reserved_figures(trace(Life(20 * MIB, 0, 1), resident=(40 * MIB,), state=(14 * MIB,)))
    assert figures.reserved_bytes == 20 * MIB + 20 * MIB - 14 * MIB


def test_what_the_first_step_keeps_in_its_midst_parts_the_room_of_later_ones() -> None:
    """The state takes 20 of the 120 MiB below it, so that the second value of 60 lies above it."""
    lives = (Life(60 * MIB, 0, 3), Life(60 * MIB, 1, 3))
    kept = (Life(40 * MIB, 2, None),)
    figures = reserved_figures(trace(*lives, state=(20 * MIB,), kept=kept))
    assert figures.allocated_bytes == 120 * MIB
    assert figures.expandable_bytes == 120 * MIB + 60 * MIB - 20 * MIB
    # Were it there before, it would part nothing.
    before = reserved_figures(trace(*lives, state=(20 * MIB,), resident=(40 * MIB,)))
    assert before.expandable_bytes == before.allocated_bytes == 120 * MIB


@given(rng=generators())
def test_no_step_takes_less_than_is_alive(rng: Random) -> None:
    lives = []
    for _ in range(rng.randrange(30)):
        made = rng.randrange(20)
        freed = rng.choice([None, rng.randint(made + 1, 21)])
        lives.append(Life(rng.choice([0, rng.randrange(1, 3 * MIB), rng.randrange(1, 40 * MIB)]), made, freed))
    lives.sort(key=lambda life: life.made)
    resident = tuple(rng.randrange(1, 10 * MIB) for _ in range(rng.randrange(4)))
    kept = tuple(Life(rng.randrange(1, 10 * MIB), rng.randrange(21), None) for _ in range(rng.randrange(3)))
    figures = reserved_figures(AllocationTrace(resident, (), tuple(lives), kept))
    rounded = [max(rounded_up(life.size_bytes, 512), 512) for life in lives]
    ends = [21 if life.freed is None else life.freed for life in lives]
    alive = [sum(s for s, one, end in zip(rounded, lives, ends) if one.made <= t < end) for t in range(21)]
    assert figures.allocated_bytes >= max(alive)
    assert figures.reserved_bytes >= figures.allocated_bytes
    assert figures.expandable_bytes >= max(alive)


def test_steps_of_other_lengths_find_no_use_for_what_the_first_ones_left() -> None:
    # A segment of 30 MiB serves 24, but what is left of it is too small for 12.
    steps = [[Life(30 * MIB, 0, 1)], [Life(24 * MIB, 0, 2), Life(12 * MIB, 1, 2)]]
    figures = figures_of_steps([], [], steps)
    assert (figures.allocated_bytes, figures.reserved_bytes) == (36 * MIB, 42 * MIB)
    # What grows serves both.
    assert figures.expandable_bytes == 40 * MIB


def test_the_state_comes_once_and_before_gradients_are_freed() -> None:
    # The first step's gradient is there when the state comes; the second one takes its place.
    steps = [[Life(20 * MIB, 0)], [Life(20 * MIB, 0)]]
    figures = figures_of_steps([], [20 * MIB], steps)
    assert (figures.allocated_bytes, figures.reserved_bytes) == (20 * MIB, 20 * MIB)


@given(rng=generators())
def test_the_figures_of_a_step_are_those_of_three_equal_ones(rng: Random) -> None:
    lives = tuple(Life(rng.randrange(1, 40 * MIB), made, made + rng.randint(1, 5)) for made in range(12))
    one = AllocationTrace((3 * MIB,), (5 * MIB,), lives)
    three = figures_of_steps(one.resident, one.state, [lives, lives, lives])
    assert reserved_figures(one) == three
    # More steps never take less, and another order of equal steps is the same.
    assert figures_of_steps(one.resident, one.state, [lives] * 5).reserved_bytes >= three.reserved_bytes
    for expandable in (False, True):
        taken = reserved_bytes(one, 2**62, expandable=expandable)
        assert taken - sum((*one.resident, *one.state)) == three.of(expandable)
