"""Cases of tests that take turns: none is left out for long, and no test ever is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turns import TURNS, waiting

TESTS = st.lists(st.integers(1, 11), min_size=1, max_size=6)


@given(TESTS, st.integers(0, 10**6))
def test_each_case_runs_within_some_turns_and_a_case_of_each_test_in_each(counts: list[int], first: int) -> None:
    cases = [
        f"tests/a.py::test_{test}[{case}-x]" if count > 1 else f"tests/a.py::test_{test}"
        for test, count in enumerate(counts)
        for case in range(count)
    ]
    ran = [set(cases) - waiting(cases, turn) for turn in range(first, first + TURNS)]
    assert set().union(*ran) == set(cases)
    for now in ran:
        assert {case.partition("[")[0] for case in now} == {case.partition("[")[0] for case in cases}


@given(st.integers(4, 40), st.integers(0, 7))
def test_a_turn_takes_a_fourth_of_many_cases(count: int, turn: int) -> None:
    cases = [f"test_a[{case}]" for case in range(count)]
    assert count // TURNS <= count - len(waiting(cases, turn)) <= -(-count // TURNS)
