"""The ways to write a budget, and what is refused with which words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsed_options import in_environment, parse
from remat_compiler.errors import OptionError
from remat_compiler.memory_budget import BudgetKind, MemoryBudget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 * 1024**3),
        ("512 MB", 512_000_000),
        ("1.5e9", 1_500_000_000),
        ("1.5e+9", 1_500_000_000),
        ("  3 kb ", 3000),
        ("3KIB", 3072),
        ("2tib", 2 * 1024**4),
        ("1PiB", 1024**5),
        ("1PB", 1000**5),
        ("7.5 EiB", 15 * 2**59),
        ("9EB", 9 * 10**18),
        ("0.5 MiB", 524_288),
        ("1.", 1),
        ("17", 17),
        ("17B", 17),
        ("6G", 6 * 1024**3),
        ("1.5 m", 3 * 2**19),
        ("7E", 7 * 1024**6),
        ("1.0009765KiB", 1024),
        ("8388607.999999 TiB", 8388607 * 1024**4 + 1024**4 - 1099512),
    ],
)
def test_byte_strings_are_exact_integers_rounded_down(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("value", [0, -1, 2**63, 10**400, True, False, 1.5, 0.0, -0.5, math.nan, math.inf, -math.inf])
def test_numbers_that_are_no_budget(value: object) -> None:
    with pytest.raises(OptionError, match="memory_budget must be a positive int"):
        parse(memory_budget=value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "6 GB of",
        "-1",
        "0",
        "0.5B",
        "0.0",
        "0%",
        "101 %",
        "50 %%",
        "-5%",
        "nan",
        "inf",
        "1e400",
        "1e40",
        "8EiB",
        "GiB",
        "6 6",
        "6,5GB",
        "٣",
        "1e-3 GB",
    ],
)
def test_strings_that_are_no_budget(value: str) -> None:
    with pytest.raises(OptionError, match="memory_budget") as error:
        parse(memory_budget=value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [None, [], {}, 1j, b"6GB", Path("6GB")])
def test_other_types_are_no_budget(value: object) -> None:
    with pytest.raises(OptionError, match="memory_budget"):
        parse(memory_budget=value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("6 GiBs", "did you mean 'GiB'"),
        ("autp", "did you mean 'auto'"),
        ("0.5B", "the least is 1 byte"),
        ("150%", "a part is above 0 and at most 1.0 or 100 %"),
        (50.0, "for 50 % of the peak without a budget write 0.5"),
        (None, "leave it out for what the device has left, or write 1.0"),
        (6e9, "for bytes write 6000000000"),
        (0, 'write "min"'),
    ],
)
def test_a_refused_budget_names_the_likely_slip(value: object, says: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(memory_budget=value)
    assert says in str(error.value)


def test_an_int_is_bytes_and_a_float_a_fraction() -> None:
    assert parse(memory_budget=1).memory_budget.of_reference(1000) == 1
    assert parse(memory_budget=1.0).memory_budget.of_reference(1000) == 1000
    assert parse(memory_budget=np.int64(7)).memory_budget == MemoryBudget(BudgetKind.BYTES, limit_bytes=7)
    assert parse(memory_budget=np.float32(0.5)).memory_budget.of_reference(1001) == 500
    assert parse(memory_budget="min").memory_budget.of_reference(1000) is None
    assert parse().memory_budget.kind is BudgetKind.AUTO


@given(st.floats(0.0, 1.0, exclude_min=True), st.integers(0, 2**50))
def test_a_fraction_never_allows_more_than_the_whole(fraction: float, peak: int) -> None:
    allowed = MemoryBudget.parse(fraction).of_reference(peak)
    assert allowed is not None
    assert 0 <= allowed <= peak
    assert abs(allowed - fraction * peak) <= 1 + peak * 2**-50


@given(st.integers(1, 2**63 - 1))
def test_every_int_is_its_own_byte_string(size: int) -> None:
    assert MemoryBudget.parse(str(size)) == MemoryBudget.parse(size)
    assert MemoryBudget.parse(MemoryBudget.parse(size)).limit_bytes == size


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1", MemoryBudget(BudgetKind.BYTES, limit_bytes=1)),
        ("1.0", MemoryBudget(BudgetKind.FRACTION, fraction=1.0)),
        ("0.5", MemoryBudget(BudgetKind.FRACTION, fraction=0.5)),
        (" .5 ", MemoryBudget(BudgetKind.FRACTION, fraction=0.5)),
        ("5.0e-1", MemoryBudget(BudgetKind.FRACTION, fraction=0.5)),
        ("0.5GiB", MemoryBudget(BudgetKind.BYTES, limit_bytes=2**29)),
        ("50%", MemoryBudget(BudgetKind.FRACTION, fraction=0.5)),
        ("12.5 %", MemoryBudget(BudgetKind.FRACTION, fraction=0.125)),
        ("100%", MemoryBudget(BudgetKind.FRACTION, fraction=1.0)),
        ("1.5e9", MemoryBudget(BudgetKind.BYTES, limit_bytes=1_500_000_000)),
        ("1500000000", MemoryBudget(BudgetKind.BYTES, limit_bytes=1_500_000_000)),
        ("700000000", MemoryBudget(BudgetKind.BYTES, limit_bytes=700_000_000)),
        ("min", MemoryBudget(BudgetKind.MIN)),
        ("Auto", MemoryBudget(BudgetKind.AUTO)),
    ],
)
def test_text_holds_a_fraction_where_there_is_a_decimal_point_or_percents(text: str, budget: MemoryBudget) -> None:
    assert parse(in_environment(memory_budget=text)).memory_budget == budget
    assert parse(memory_budget=text).memory_budget == budget


@given(st.floats(1e-9, 1.0))
def test_a_float_is_its_own_text(fraction: float) -> None:
    assert MemoryBudget.parse(f"{fraction:.30f}") == MemoryBudget.parse(fraction)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (1, "1 (which is bytes: 0.01 is a part of the peak without a budget, 1.0 all of it)"),
        (50, "50 (which is bytes: 0.5 is a part of the peak without a budget)"),
        ("100", "'100' (which is bytes: 1.0 is a part of the peak without a budget)"),
        ("50B", "'50B'"),
        (101, "101"),
        ("50%", "50% of the peak without a budget"),
        ("6G", "'6G'"),
    ],
)
def test_few_bytes_are_asked_for_with_a_hint_that_they_are_bytes(value: object, asked: str) -> None:
    assert MemoryBudget.parse(value).asked == asked
