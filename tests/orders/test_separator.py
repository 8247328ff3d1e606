"""Reordering of tasks by minimum cuts, against the best of all orders."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pytest

from remat_passes.orders.separator import Tasks, arranged, lower_peak

ENOUGH_TURNS = 60


def drawn(seed: int, most: int = 9, fixed: float = 0.0) -> Tasks:
    """Up to `most` tasks that read what earlier ones make."""
    draw = Random(seed)
    n = draw.randint(3, most)
    size: list[int] = []
    maker: list[int] = []
    readers: list[list[int]] = []
    pairs: list[tuple[int, int]] = []
    for k in range(n):
        for v in draw.sample(range(len(size)), min(len(size), draw.randint(0, 3))):
            readers[v].append(k)
            if maker[v] >= 0:
                pairs.append((k, maker[v]))
        for made_by in (k, k, -1)[: draw.randint(1, 3)]:
            size.append(draw.randint(0, 20))
            maker.append(made_by)
            readers.append([])
    pairs += [(k, draw.randrange(k)) for k in range(1, n) if draw.random() < 0.1]
    return Tasks(
        own=np.array([draw.randint(0, 10) for _ in range(n)], np.int64),
        size=np.array(size, np.int64),
        maker=np.array(maker, np.int64),
        kept=np.array([m >= 0 and draw.random() < 0.25 for m in maker], np.bool_),
        start=np.cumsum([0, *map(len, readers)]).astype(np.int64),
        readers=np.array([r for row in readers for r in row], np.int64),
        later=np.array([later for later, _ in pairs], np.int64),
        earlier=np.array([earlier for _, earlier in pairs], np.int64),
        fixed=np.array([draw.random() < fixed for _ in range(n)], np.bool_),
        base=draw.randint(0, 5),
    )


def in_turn(tasks: Tasks) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(len(tasks.own))


def bytes_at(tasks: Tasks, done: frozenset[int], task: int) -> int:
    """Bytes alive while `task` runs after `done`."""
    total = tasks.base + int(tasks.own[task])
    for v in range(len(tasks.size)):
        maker = int(tasks.maker[v])
        readers = set(tasks.readers[tasks.start[v] : tasks.start[v + 1]].tolist())
        there = maker < 0 or maker in done or maker == task
        if there and (tasks.kept[v] or maker == task or readers - done):
            total += int(tasks.size[v])
    return total


def lowest_peak(tasks: Tasks) -> int:
    """The lowest peak of all orders, from the end: what remains after each set of tasks that may have run."""
    n = len(tasks.own)
    needs: list[set[int]] = [set() for _ in range(n)]
    for later, earlier in zip(tasks.later.tolist(), tasks.earlier.tolist()):
        needs[later].add(earlier)

    @cache
    def rest(done: frozenset[int]) -> int:
        ready = [k for k in range(n) if k not in done and needs[k] <= done]
        return min((max(bytes_at(tasks, done, k), rest(done | {k})) for k in ready), default=0)

    return rest(frozenset())


def test_orders_are_valid_never_worse_and_mostly_the_best_there_are() -> None:
    best = 0
    for seed in range(200):
        tasks = drawn(seed)
        order, peak, _ = lower_peak(tasks, in_turn(tasks), 0, ENOUGH_TURNS)
        place = np.argsort(order)
        assert sorted(order.tolist()) == in_turn(tasks).tolist()
        assert (place[tasks.earlier] < place[tasks.later]).all()
        walked = [bytes_at(tasks, frozenset(order[:p].tolist()), int(k)) for p, k in enumerate(order)]
        assert arranged(tasks, order).alive.tolist() == walked
        assert peak == max(walked)
        lowest = lowest_peak(tasks)
        assert lowest <= peak <= arranged(tasks, in_turn(tasks)).alive.max()
        best += peak == lowest
    assert best >= 190


@pytest.mark.parametrize("seed", range(20))
def test_fixed_tasks_stay_and_nothing_passes_them(seed: int) -> None:
    tasks = drawn(seed, most=30, fixed=0.2)
    order, _, _ = lower_peak(tasks, in_turn(tasks), 0, ENOUGH_TURNS)
    for p in np.flatnonzero(tasks.fixed):
        assert order[p] == p
        assert set(order[:p].tolist()) == set(range(p))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_moves_where_the_target_is_met(seed: int) -> None:
    tasks = drawn(seed, most=30)
    top = int(arranged(tasks, in_turn(tasks)).alive.max())
    still, peak, _ = lower_peak(tasks, in_turn(tasks), top, ENOUGH_TURNS)
    assert still.tolist() == in_turn(tasks).tolist()
    assert peak == top
    lowest = lower_peak(tasks, in_turn(tasks), 0, ENOUGH_TURNS)
    again = lower_peak(tasks, in_turn(tasks), 0, ENOUGH_TURNS)
    assert lowest[0].tolist() == again[0].tolist()
    _, peak, _ = lower_peak(tasks, in_turn(tasks), (top + lowest[1]) // 2, ENOUGH_TURNS)
    assert peak <= (top + lowest[1]) // 2 or peak == lowest[1]
