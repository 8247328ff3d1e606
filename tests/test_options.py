"""Options of `torch.compile(backend="remat")`: what is accepted, and what each refusal says."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_compiler import options as options_module
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.memory_budget import BudgetKind, MemoryBudget, parse_bytes
from remat_compiler.options import Environment, RematOptions, variable_of
from remat_compiler.units import format_bytes

EMPTY = Environment.read({"HOME": "/nowhere"})


def check_planner(name: str) -> None:
    if name not in ("auto", "min_cut", "chen_sqrt"):
        raise UnknownName("planner", name, ("auto", "min_cut", "chen_sqrt"))


def parse(environment: Environment = EMPTY, **options: object) -> RematOptions:
    return RematOptions.parse(options, check_planner=check_planner, environment=environment)


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
    ("options", "says"),
    [
        ({"memory_bugdet": "6GiB"}, "unknown option 'memory_bugdet'; did you mean 'memory_budget'?"),
        ({"inner": "inducter"}, "unknown inner 'inducter'; did you mean 'inductor'?"),
        ({"inner": None}, "inner must be one of 'inductor', 'eager', got None"),
        ({"cost_model": "measurd"}, "did you mean 'measured'?"),
        ({"on_infeasible": "raise"}, "(allowed: error, min)"),
        ({"max_slowdown": 0.5}, "max_slowdown must be at least 1.0"),
        ({"max_slowdown": True}, "max_slowdown must be a finite number above 0, got True"),
        ({"max_slowdown": math.nan}, "max_slowdown"),
        ({"max_slowdown": -math.inf}, "max_slowdown"),
        ({"max_slowdown": "2"}, "max_slowdown"),
        ({"time_limit": -1}, "time_limit must be a finite number of at least 0, or None, got -1"),
        ({"time_limit": "2"}, "time_limit"),
        ({"variants": "always"}, "unknown option 'variants'; did you mean 'max_variants'?"),
        ({"estimator": "linear"}, "unknown estimator 'linear'"),
        ({"max_variants": 1}, "max_variants must be a whole number of at least 2, got 1"),
        ({"max_variants": 2.5}, "max_variants"),
        ({"max_variants": True}, "max_variants"),
        ({"time_limit": float("inf")}, "time_limit"),
        ({"max_slowdown": -(10**400)}, "max_slowdown must be a finite number above 0, got -1000"),
        ({"time_limit": 10**400}, "time_limit must be a finite number of at least 0, or None, got 1000"),
        ({"time_limit": 10**5000}, "got a whole number of about"),
        ({"memory_budget": 10**5000}, "got a whole number of about"),
        ({"memory_budget": -(10**5000)}, "got a whole number of about"),
        ({"max_variants": 10**5000}, "max_variants must be a whole number of at most 1000000, got a whole number of"),
        ({"memory_budget": "9" * 5000}, "...; the largest budget is"),
        ({"dump": "~nosuchuser/dump"}, "the home directory that '~nosuchuser/dump' begins with is not known"),
        ({"dump": "a\0b"}, "holds no null character, got 'a\\x00b'"),
        ({"dump": ""}, "dump must be the path of a folder"),
        ({"dump": 3}, "dump must be the path of a folder or None, got 3"),
        ({"planner": 3}, "planner must be the name of a planner, got 3"),
        ({1: 2}, "unknown option 1"),
        ({"offload_budget": -1}, "offload_budget must be an int of at least 0 (bytes), a byte string such as"),
        ({"offload_budget": True}, "or None to move nothing, got True"),
        ({"offload_budget": 0.5}, "got 0.5"),
        ({"offload_budget": "many"}, "got 'many'"),
        ({"offload_budget": 10**5000}, "got a whole number of about"),
        ({"budget_of": "reservd"}, "unknown budget_of 'reservd'; did you mean 'reserved'?"),
        ({"layout": "planed"}, "unknown layout 'planed'; did you mean 'planned'"),
        ({"offload_tier": "dick"}, "unknown offload_tier 'dick'; did you mean 'disk'?"),
        ({"offload_dir": ""}, "offload_dir must be the path of a folder"),
        ({"offload_direct": 1}, "offload_direct must be True or False, got 1"),
        ({"inplace_buffers": "yes"}, "inplace_buffers must be True or False, got 'yes'"),
    ],
)
def test_a_refused_option_says_got_and_allowed(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError) as error:
        RematOptions.parse(options, check_planner=check_planner, environment=EMPTY)
    assert says in str(error.value)


def test_an_unknown_planner_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'min_cut'"):
        parse(planner="mincut")


@pytest.mark.parametrize(("inner", "handed_on"), [("inductor", (("inplace_buffers", False),)), ("eager", ())])
def test_inplace_buffers_is_a_setting_of_inductor_too(inner: str, handed_on: tuple[tuple[str, object], ...]) -> None:
    given = {"inner": inner, "inplace_buffers": False}
    parsed = RematOptions.parse(
        given, check_planner=check_planner, environment=EMPTY, is_inductors=lambda name, _: name == "inplace_buffers"
    )
    assert (parsed.inplace_buffers, parsed.inductor) == (False, handed_on)


def test_options_must_be_a_mapping() -> None:
    with pytest.raises(OptionError, match="must be a mapping"):
        RematOptions.parse(["dump"], check_planner=check_planner, environment=EMPTY)  # type: ignore[arg-type]


def test_no_options_are_the_defaults() -> None:
    assert RematOptions.parse(None, check_planner=check_planner, environment=EMPTY) == RematOptions()


@pytest.mark.parametrize("value", [None, math.inf, 10**400])
def test_the_slowdown_can_be_lifted(value: float | None) -> None:
    assert parse(max_slowdown=value).max_slowdown is None


OF_THE_ENVIRONMENT: dict[str, tuple[str, object]] = {
    "memory_budget": ("6GiB", MemoryBudget(BudgetKind.BYTES, limit_bytes=6 * 1024**3)),
    "planner": ("min_cut", "min_cut"),
    "inner": ("eager", "eager"),
    "cost_model": ("nominal", "nominal"),
    "dump": ("/env", Path("/env")),
    "on_infeasible": ("min", "min"),
    "max_slowdown": ("1.5", 1.5),
    "time_limit": ("3", 3.0),
    "max_variants": ("4", 4),
    "estimator": ("quadratic", "quadratic"),
    "budget_of": ("reserved", "reserved"),
    "layout": ("planned", "planned"),
    "inplace_buffers": ("0", False),
    "offload_budget": ("2GiB", 2 * 1024**3),
    "offload_tier": ("host", "host"),
    "offload_dir": ("/fast", Path("/fast")),
    "offload_direct": ("1", True),
}
"""Text of the variable of each option, and what it means."""
CODE_ONLY = {"inductor"}
"""Settings of Inductor, which has variables of its own for them."""


def in_environment(**texts: str) -> Environment:
    return Environment.read({"HOME": "/h", **{variable_of(name): text for name, text in texts.items()}})


@pytest.mark.parametrize("name", [f.name for f in fields(RematOptions) if f.name not in CODE_ONLY])
def test_every_option_has_a_variable_over_which_the_code_wins(name: str, caplog: pytest.LogCaptureFixture) -> None:
    text, value = OF_THE_ENVIRONMENT[name]
    default = getattr(RematOptions(), name)
    environment = in_environment(**{name: text})
    assert value != default
    assert getattr(parse(environment), name) == value
    assert getattr(parse(environment, **{name: default}), name) == default
    assert parse(environment) == RematOptions(**{name: value})  # type: ignore[arg-type]
    assert not caplog.records


@pytest.mark.parametrize("name", sorted(OF_THE_ENVIRONMENT))
def test_the_documentation_names_every_option_and_its_variable(name: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "options.md").read_text(encoding="utf-8")
    assert f"| `{name}` | `{variable_of(name)}` |" in page


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


@pytest.mark.parametrize("name", ["max_slowdown", "time_limit"])
def test_a_variable_lifts_a_limit_by_the_word_none(name: str) -> None:
    assert getattr(parse(in_environment(**{name: "None"})), name) is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("memory_budget", "6GoB", "unknown unit 'GoB'"),
        ("memory_budget", "0.0", "memory_budget must be"),
        ("memory_budget", "half", "memory_budget must be"),
        ("inner", "inducter", "did you mean 'inductor'"),
        ("cost_model", "x", "unknown cost_model 'x'"),
        ("dump", "~nosuchuser/x", "home directory"),
        ("on_infeasible", "raise", "(allowed: error, min)"),
        ("max_slowdown", "0.5", "at least 1.0"),
        ("max_slowdown", "fast", "got 'fast'"),
        ("time_limit", "inf", "finite"),
        ("max_variants", "6.0", "whole number"),
        ("estimator", "linear", "unknown estimator"),
    ],
)
def test_a_malformed_variable_of_an_option_is_named(name: str, text: str, says: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(in_environment(**{name: text}))
    assert str(error.value).startswith(f"{variable_of(name)}={text!r}: ")
    assert says in str(error.value)


def test_a_planner_of_the_environment_is_checked_and_its_variable_named() -> None:
    with pytest.raises(UnknownName, match="unknown planner 'nope' in the variable REMAT_PLANNER"):
        parse(in_environment(planner="nope"))


def test_the_environment_is_read_whole() -> None:
    env = Environment.read({"REMAT_CACHE_DIR": "/c", "REMAT_DISABLE_CACHE": "1", "REMAT_VERIFY": "2", "REMAT_DUMP": ""})
    assert env == Environment(cache_dir=Path("/c"), disable_cache=True, verify=2)
    assert Environment.read({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/remat")


def test_the_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/someone")
    environment = Environment.read({"REMAT_CACHE_DIR": "~/cache", "REMAT_DUMP": "~/dump"})
    assert environment.cache_dir == Path("/someone/cache")
    assert parse(environment).dump == Path("/someone/dump")


def test_without_a_home_directory_nothing_is_kept_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    options_module._warn_of_no_home.cache_clear()
    assert [Environment.read({}).cache_dir for _ in range(2)] == [None, None]
    assert Environment.read({"REMAT_CACHE_DIR": "/c"}).cache_dir == Path("/c")
    (record,) = caplog.records
    assert "name a folder by REMAT_CACHE_DIR" in record.message


@pytest.mark.parametrize(("name", "value"), [("REMAT_VERIFY", "3"), ("REMAT_DISABLE_CACHE", "maybe")])
def test_a_malformed_variable_is_an_error(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        Environment.read({name: value})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REMAT_DUMB", "REMAT_DUMP"),
        ("REMAT_BUDGET", "REMAT_MEMORY_BUDGET"),
        ("REMAT_SLOWDOWN", "REMAT_MAX_SLOWDOWN"),
        ("REMAT_CACHE", "REMAT_CACHE_DIR"),
    ],
)
def test_a_misspelt_variable_is_warned_about(name: str, meant: str, caplog: pytest.LogCaptureFixture) -> None:
    Environment.read({"HOME": "/h", name: "x"})
    near = caplog.text.partition(f"ignored environment variable {name}; did you mean ")[2].partition("?")[0]
    assert repr(meant) in near


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (19_083_878, "18.2 MiB"),
        (6 * 1024**3, "6.0 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_bytes_are_printed_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text
