"""Room that is given out and taken back, against a map of every page."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from builders import generators
from remat_compiler.ir.plan import PAGE_BYTES, in_pages
from remat_compiler.offload.arena import Arena


@given(pages=st.integers(0, 40), rng=generators(), turns=st.integers(1, 60))
def test_no_two_values_share_a_page_and_free_pages_are_found_again(pages: int, rng: Random, turns: int) -> None:
    arena = Arena(pages * PAGE_BYTES)
    taken: list[tuple[int, int]] = []
    owner = [0] * pages
    for turn in range(1, turns + 1):
        if taken and rng.random() < 0.4:
            offset, size = taken.pop(rng.randrange(len(taken)))
            arena.give_back(offset, size)
            mark = 0
        else:
            size = rng.randrange(1, 6 * PAGE_BYTES)
            found = arena.take(size)
            runs = "".join("." if one == 0 else "x" for one in owner).split("x")
            fits = [run for run in runs if len(run) * PAGE_BYTES >= size]
            assert (found is None) == (not fits)
            if found is None:
                continue
            offset, mark = found, turn
            first = offset // PAGE_BYTES
            assert owner[first : first + in_pages(size) // PAGE_BYTES] == [0] * (in_pages(size) // PAGE_BYTES)
            taken.append((offset, size))
        first = offset // PAGE_BYTES
        owner[first : first + in_pages(size) // PAGE_BYTES] = [mark] * (in_pages(size) // PAGE_BYTES)
        assert arena.taken_bytes == PAGE_BYTES * sum(one != 0 for one in owner)


def test_what_takes_no_more_than_everything_in_turn_always_finds_room() -> None:
    """The room that is reserved for a step is the sum of all that it moves, so the order of returns does not matter."""
    sizes = [5000, 4096, 12000, 1, 9000]
    for order in range(32):
        arena = Arena(sum(map(in_pages, sizes)))
        held = []
        for i, size in enumerate(sizes):
            offset = arena.take(size)
            assert offset is not None
            held.append((offset, size))
            if order >> i & 1:
                arena.give_back(*held.pop(0))
