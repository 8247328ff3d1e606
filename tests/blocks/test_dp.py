"""The tables of the block program against all ways through short chains, each walked step by step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_passes.blocks.dp import NEVER, fill_tables, instructions
from remat_passes.sequences.profile import IntArray

Way = list[tuple[str, int, int]]
"""What happens in turn, with block and option: a plain `run`, a run that `saves` for its `stage` to come, or that
`turns` into its stage at once, and values `held` or `freed` in front of a block."""
UNITS = 50


class Blocks:
    """Random blocks, a unit of memory being a byte."""

    def __init__(self, rng: Random, count: int, options: int) -> None:
        def some(most: int, *shape: int) -> IntArray:
            return np.array([rng.randrange(most) for _ in range(int(np.prod(shape)))], np.int64).reshape(shape)

        self.count, self.options = count, options
        self.run_ns, self.state = some(9, count) + 1, some(6, count)
        self.option_bytes, self.option_ns = some(6, count, options), some(9, count, options)
        self.option_peak, self.run_peak = some(9, count, options), some(9, count, options)
        made = some(5, count, count + 1)
        self.held = np.zeros((count + 1, count + 1), np.int64)
        for i in range(count):
            for k in range(i + 1, count + 1):
                self.held[i, k] = made[i:k, k].sum()

    def tables(self) -> tuple[IntArray, IntArray]:
        return fill_tables(
            *(self.run_ns, self.held, self.option_bytes, self.option_ns),
            *(self.option_peak, self.run_peak, self.state, 1, UNITS),
        )


def ways(i: int, j: int, options: int) -> Iterator[Way]:
    """All ways to run blocks `i` to `j` and their stages, the values before `i` being held."""
    for o in range(options):
        if i == j:
            yield [("turns", i, o)]
            continue
        for rest in ways(i + 1, j, options):
            yield [("saves", i, o), ("held", i + 1, o), *rest, ("freed", i + 1, o), ("stage", i, o)]
    for k in range(i + 1, j + 1):
        for right in ways(k, j, options):
            for left in ways(i, k - 1, options):
                yield [*(("run", block, -1) for block in range(i, k)), ("held", k, -1), *right, ("freed", k, -1), *left]


def between(blocks: Blocks, held: list[int]) -> int:
    """Bytes of the values held in front of blocks, beyond those before block 0."""
    return sum(int(blocks.held[a, b]) for a, b in pairwise(held))


def need_and_time(blocks: Blocks, way: Way) -> tuple[int, int]:
    """Bytes beyond the values before block 0 that a way needs, and its time."""
    held, saved, need, time = [0], 0, 0, 0
    first_stage_left = blocks.count
    for what, block, option in way:
        base = between(blocks, held) + saved
        if what == "run":
            time += int(blocks.run_ns[block])
        elif what in ("saves", "turns"):
            # Before any stage the backward holds nothing; then what it holds at the next stage to come.
            beside = 0 if first_stage_left == blocks.count else int(blocks.state[first_stage_left - 1])
            need = max(need, base + int(blocks.run_peak[block, option]) + beside)
            time += int(blocks.run_ns[block] + blocks.option_ns[block, option])
            if what == "saves":
                saved += int(blocks.option_bytes[block, option])
        elif what == "held":
            held.append(block)
            need = max(need, between(blocks, held) + saved)
        elif what == "freed":
            assert held.pop() == block
        elif what == "stage":
            saved -= int(blocks.option_bytes[block, option])
        if what in ("turns", "stage"):
            beside_saved = between(blocks, held) + saved
            need = max(need, beside_saved + int(blocks.option_peak[block, option]))
            first_stage_left = block
    assert held == [0]
    assert saved == 0
    assert first_stage_left == 0
    return need, time


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4), options=st.integers(1, 2))
def test_for_each_memory_the_least_time_of_all_ways(seed: int, count: int, options: int) -> None:
    blocks = Blocks(Random(seed), count, options)
    cheapest = np.full(UNITS, NEVER, np.int64)
    for way in ways(0, count - 1, options):
        need, time = need_and_time(blocks, way)
        cheapest[need:] = np.minimum(cheapest[need:], time)
    best, _ = blocks.tables()
    assert best[0, count - 1].tolist() == cheapest.tolist()


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6), options=st.integers(1, 3))
def test_instructions_take_the_time_of_the_tables(seed: int, count: int, options: int) -> None:
    blocks = Blocks(Random(seed), count, options)
    best, choice = blocks.tables()
    for memory in range(UNITS):
        rows = instructions(blocks.held, blocks.option_bytes, choice, 1, memory).tolist()
        assert bool(rows) == (best[0, count - 1, memory] < NEVER)
        if not rows:
            continue
        runs = [block for block, option in rows if option < 0]
        last = [(block, -2 - option) for block, option in rows if option < -1]
        again = sum(blocks.option_ns[block, option] for block, option in last)
        assert sum(blocks.run_ns[runs]) + again == best[0, count - 1, memory]
        # The stages come from the last block to the first, each with the option of its block's last run.
        assert [(block, option) for block, option in rows if option >= 0] == sorted(last, reverse=True)
        assert len(last) == count
