"""The search for the largest number: always right for what falls, and soon done for what falls on a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.fitting.largest import LARGEST, bracket, estimated, next_numbers

numbers = st.integers(1, 3000)


def searched(slack_at: Callable[[int], int], count: int) -> tuple[int, int]:
    """The answer, and how often was asked."""
    known: dict[int, int] = {}
    rounds = 0
    while asked := next_numbers(known, count):
        assert len(set(asked)) == len(asked) <= count
        assert not known.keys() & set(asked), "asked again"
        known |= {n: slack_at(n) for n in asked}
        rounds += 1
        assert rounds < 400
    return bracket(known)[0], rounds


@given(numbers, st.integers(0, 5), st.integers(1, 4))
def test_the_largest_with_room_is_found_on_a_line(slope: int, offset: int, count: int) -> None:
    total = 100_000
    found, rounds = searched(lambda n: total - offset * slope - slope * n, count)
    assert found == max(0, (total - offset * slope) // slope)
    assert rounds <= 16


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=300), st.integers(1, 3))
def test_the_largest_with_room_is_found_wherever_it_falls(falls: list[int], count: int) -> None:
    left = [sum(falls) // 2]
    for fall in falls:
        left.append(left[-1] - fall)

    def slack(n: int) -> int:
        return left[n] if n < len(left) else left[-1] - n

    found, _ = searched(slack, count)
    assert found == max((n for n in range(1, len(left)) if left[n] >= 0), default=0)


def test_what_never_ends_is_not_searched_for_ever() -> None:
    found, rounds = searched(lambda _: 1, 2)
    assert found == LARGEST
    assert rounds < 20


@pytest.mark.parametrize(
    ("slack", "largest"), [({}, 0), ({4: -1}, 0), ({4: 10, 8: -10}, 6), ({4: 10}, 4), ({4: 10, 5: -1}, 4)]
)
def test_the_estimate_lies_between_what_is_known(slack: dict[int, int], largest: int) -> None:
    assert estimated(slack) == largest
