"""Sizes and counts as messages have them."""

from __future__ import annotations

import pytest

from remat_compiler.units import counted, part_of, told_apart


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
