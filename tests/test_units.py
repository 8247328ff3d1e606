"""Sizes and counts as messages have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.units import counted, part_of, told_apart, written


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ((54_600_000, 40_951_782), ("52.1 MiB", "39.1 MiB")),
        ((40_951_790, 40_951_782), ("39.1 MiB (40951790 bytes)", "39.1 MiB (40951782 bytes)")),
        ((7, 7), ("7 B", "7 B")),
        ((5000, 5001, 8), ("4.9 KiB (5000 bytes)", "4.9 KiB (5001 bytes)", "8 B")),
    ],
)
def test_different_sizes_never_read_the_same(sizes: tuple[int, ...], texts: tuple[str, ...]) -> None:
    assert told_apart(*sizes) == texts


def test_one_is_no_plural() -> None:
    assert [counted(n, "call") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]


def test_a_fraction_is_the_decimal_that_was_written() -> None:
    # In binary, 0.29 * 100 is less than 29.
    assert [part_of(0.29, 100), part_of(0.3, 10), part_of(1.0, 2**62 + 1), part_of(0.5, 3)] == [29, 3, 2**62 + 1, 1]


@given(st.integers(1, 2**45))
def test_a_written_budget_covers_what_is_meant_and_hardly_more(num_bytes: int) -> None:
    text = written(num_bytes)
    assert num_bytes <= MemoryBudget.parse(text).limit_bytes <= num_bytes * 1.1 + 1
    assert len(text) <= len("32768.01GiB")


@pytest.mark.parametrize(("num_bytes", "text"), [(5, "5B"), (1536, "1.5KiB"), (2**30 + 1, "1.01GiB"), (2**24, "16MiB")])
def test_a_written_budget_has_few_digits(num_bytes: int, text: str) -> None:
    assert written(num_bytes) == text
