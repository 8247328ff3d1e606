"""Options of `torch.compile(backend="remat")`: what is accepted, and what each refusal says."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from other_values import other
from parsed_options import EMPTY, check_planner, in_environment, parse
from remat_compiler import options as options_module
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.options import Environment, RematOptions, variable_of
from remat_compiler.units import format_bytes


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
        ({"chunks": 0}, 'chunks must be "auto", "never" or a whole number from 1 to 1000000 (the most chunks), got 0'),
        ({"chunks": True}, "got True"),
        ({"chunks": "often"}, "got 'often'"),
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


@pytest.mark.parametrize(("given", "chunks"), [("never", 1), (1, 1), (16, 16), ("auto", 0)])
def test_chunks_are_a_number_or_a_word(given: object, chunks: int) -> None:
    assert parse(chunks=given).chunks == chunks


def test_options_must_be_a_mapping() -> None:
    with pytest.raises(OptionError, match="must be a mapping"):
        RematOptions.parse(["dump"], check_planner=check_planner, environment=EMPTY)  # type: ignore[arg-type]


def test_no_options_are_the_defaults() -> None:
    assert RematOptions.parse(None, check_planner=check_planner, environment=EMPTY) == RematOptions()


@pytest.mark.parametrize("value", [None, math.inf, 10**400])
def test_the_slowdown_can_be_lifted(value: float | None) -> None:
    assert parse(max_slowdown=value).max_slowdown is None


OPTIONS = [one.name for one in fields(RematOptions) if one.name != "inductor"]
"""All but settings of Inductor, which has variables of its own for them."""


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_variable_over_which_the_code_wins(name: str, caplog: pytest.LogCaptureFixture) -> None:
    value, default = other(RematOptions(), name), getattr(RematOptions(), name)
    environment = in_environment(**{name: str(int(value)) if isinstance(value, bool) else str(value)})
    assert getattr(parse(environment), name) == value
    written = "auto" if name == "chunks" else default
    assert getattr(parse(environment, **{name: written}), name) == default
    assert parse(environment) == replace(RematOptions(), **{name: value})
    assert not caplog.records


@pytest.mark.parametrize("name", OPTIONS)
def test_the_documentation_names_every_option_and_its_variable(name: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "options.md").read_text(encoding="utf-8")
    assert f"| `{name}` | `{variable_of(name)}` |" in page


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
