"""The tables of the persistent program against all schedules of short chains, each run step by step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_passes.chains.rotor import NEVER, fill, pair
from remat_passes.sequences.profile import IntArray

Schedule = list[tuple[str, int]]
"""What happens in turn: a layer is `run`, run and `kept`, `recomputed` for its backward; a state `held` or `freed`;
the values inside a layer `freed` with its backward `back`."""
UNITS = 60


class Layers:
    """Random layers, in units of memory."""

    def __init__(self, rng: Random, count: int) -> None:
        def some(most: int) -> IntArray:
            return np.array([rng.randrange(most) for _ in range(count)], np.int64)

        self.count = count
        self.run_ns, self.again_ns = some(9) + 1, some(9)
        self.inner, self.run_peak, self.back_peak, self.own = some(5), some(6), some(8), some(6)
        self.keep_peak = self.run_peak + self.inner
        self.single_peak = np.maximum(self.back_peak, some(9))
        # Values of some layer before k that are still read from layer k on: all those held at i count no second time.
        made = [[rng.randrange(5) for _ in range(count)] for _ in range(count)]
        self.state = np.zeros((count, count), np.int64)
        for i in range(count):
            for k in range(i + 1, count):
                self.state[i, k] = sum(made[layer][k] for layer in range(i, k))

    def tables(self) -> IntArray:
        best, _ = fill(
            *(self.run_ns, self.again_ns, self.state, self.inner),
            *(self.run_peak, self.keep_peak, self.back_peak, self.single_peak, self.own, UNITS),
        )
        return np.asarray(best[pair(0, self.count - 1, self.count)])


def schedules(i: int, j: int) -> Iterator[Schedule]:
    """All memory-persistent ways to run layers `i` to `j` and reverse them, the state before `i` being held."""
    if i == j:
        yield [("recomputed", i)]
        return
    for rest in schedules(i + 1, j):
        yield [("kept", i), ("held", i + 1), *rest, ("freed", i + 1), ("back", i)]
    for k in range(i + 1, j + 1):
        runs = [("run", layer) for layer in range(i, k)]
        for right in schedules(k, j):
            for left in schedules(i, k - 1):
                yield [*runs, ("held", k), *right, ("freed", k), *left]


def need_and_time(layers: Layers, schedule: Schedule) -> tuple[int, int]:
    """Units beyond the state before layer 0 that a schedule needs, and its time: a walk over what happens."""
    held, inside, need, time = [0], 0, 0, 0
    reversed_down_to = layers.count
    for what, layer in schedule:
        base = sum(int(layers.state[a, b]) for a, b in pairwise(held)) + inside
        # Before any backward nothing of it is there; then what it holds before the next layer to be reversed.
        gradients = 0 if reversed_down_to == layers.count else int(layers.own[reversed_down_to - 1])
        before = int(layers.state[held[-1], layer]) if layer > held[-1] else 0
        if what == "run":
            need, time = max(need, base + before + layers.run_peak[layer] + gradients), time + layers.run_ns[layer]
        elif what == "kept":
            need, time = max(need, base + layers.keep_peak[layer] + gradients), time + layers.run_ns[layer]
            inside += int(layers.inner[layer])
        elif what == "held":
            held.append(layer)
            need = max(need, base + before)
        elif what == "freed":
            assert held.pop() == layer
        elif what == "recomputed":
            # The last layer runs for the first time here.
            first = layers.keep_peak[layer] if layer == layers.count - 1 else 0
            need, time = max(need, base + max(layers.single_peak[layer], first)), time + layers.again_ns[layer]
            reversed_down_to = layer
        else:
            inside -= int(layers.inner[layer])
            need = max(need, base - int(layers.inner[layer]) + layers.back_peak[layer])
            reversed_down_to = layer
    assert held == [0]
    assert inside == 0
    assert reversed_down_to == 0
    return int(need), int(time)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
def test_for_each_memory_the_least_time_of_all_schedules(seed: int, count: int) -> None:
    layers = Layers(Random(seed), count)
    cheapest = np.full(UNITS, NEVER, np.int64)
    for schedule in schedules(0, count - 1):
        need, time = need_and_time(layers, schedule)
        cheapest[need:] = np.minimum(cheapest[need:], time)
    assert layers.tables().tolist() == cheapest.tolist()


@pytest.mark.parametrize(("count", "number"), [(1, 1), (2, 2), (3, 6), (4, 22), (5, 90)])
def test_there_are_as_many_schedules_as_schroeder_counts(count: int, number: int) -> None:
    assert len(list(schedules(0, count - 1))) == number
