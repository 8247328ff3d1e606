"""Tests that take turns: none is left out for long, and some of each group always run."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from turns import TURNS, waiting


@given(st.lists(st.integers(1, 11), min_size=1, max_size=6), st.integers(0, 10**6))
def test_each_runs_within_some_turns_and_some_of_each_group_in_each(counts: list[int], first: int) -> None:
    grouped = [(group, f"{group}-{number}") for group, count in enumerate(counts) for number in range(count)]
    names = {name for _, name in grouped}
    ran = [names - waiting([*grouped, *grouped], turn) for turn in range(first, first + TURNS)]
    assert set().union(*ran) == names
    for now in ran:
        assert {name.partition("-")[0] for name in now} == {str(group) for group, _ in grouped}


@given(st.integers(4, 40), st.integers(0, 7))
def test_a_turn_takes_a_fourth_of_many(count: int, turn: int) -> None:
    grouped = [("cases", str(number)) for number in range(count)]
    assert count // TURNS <= count - len(waiting(grouped, turn)) <= -(-count // TURNS)


def test_a_turn_has_all_values_of_each_parameter() -> None:
    cases = [("test", f"{there}-{kind}-{number}") for there in "ab" for kind in "klmn" for number in range(6)]
    for turn in range(TURNS):
        runs = {name for _, name in cases} - waiting(cases, turn)
        assert {name[0] for name in runs} == set("ab")
        assert {name[2] for name in runs} == set("klmn")


def test_long_tests_are_there_under_their_names() -> None:
    folder = Path(__file__).parent
    listed = (folder / "long_tests.txt").read_text().split()
    assert listed == sorted(set(listed))
    for name in listed:
        file, _, test = name.removesuffix("[]").partition("::")
        assert f"def {test}" in (folder / file).read_text(), name
        assert not test or file not in listed, name
