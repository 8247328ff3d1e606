from __future__ import annotations

import heapq

import pytest

from remat_passes.bounds.revolve import fewest_executions, fewest_repetitions


def searched(length: int, slots: int) -> int:
    """Fewest executions by search over all schedules: a state is the current step, the held ones, and what is left."""
    start = (0, frozenset({0}), length)
    heap: list[tuple[int, int, tuple[int, frozenset[int], int]]] = [(0, 0, start)]
    best = {start: 0}
    ticket = 0
    while heap:
        cost, _, node = heapq.heappop(heap)
        at, held, left = node
        if cost > best[node]:
            continue
        if left == 0:
            return cost
        following = []
        if at < left - 1:
            following.append((cost + 1, (at + 1, held, left)))
        elif at == left - 1:
            following.append((cost, (at, held, left - 1)))  # the backward of step `left - 1`
        if len(held) < slots:
            following.append((cost, (at, held | {at}, left)))
        following += [(cost, (s, held, left)) for s in sorted(held) if s != at and s < left]
        following += [(cost, (at, held - {s}, left)) for s in sorted(held) if s != at]
        for spent, made in following:
            if spent < best.get(made, 1 << 60):
                ticket += 1
                best[made] = spent
                heapq.heappush(heap, (spent, ticket, made))
    raise AssertionError("no schedule")


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("length", range(1, 10))
def test_equals_search(length: int, slots: int) -> None:
    assert fewest_executions(length, slots) == searched(length, slots)


def test_enough_slots_repeat_nothing() -> None:
    assert [fewest_repetitions(n, n) for n in range(1, 9)] == [0] * 8


def test_one_slot_starts_over_each_time() -> None:
    assert fewest_executions(7, 1) == 6 + 5 + 4 + 3 + 2 + 1


@pytest.mark.parametrize(("length", "slots"), [(3, 0), (-1, 2)])
def test_wrong_arguments(length: int, slots: int) -> None:
    with pytest.raises(ValueError, match="at least 1 slot"):
        fewest_executions(length, slots)
