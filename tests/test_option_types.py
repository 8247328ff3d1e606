"""The options as a type: the names and the allowed values of the options that are checked."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from remat_compiler import options as options_module
from remat_compiler.option_types import Options
from remat_compiler.options import Environment, RematOptions


def test_the_type_of_the_options_has_their_names_and_allowed_values() -> None:
    hints = get_type_hints(Options)
    assert set(hints) == {field.name for field in fields(RematOptions)} - {"inductor"}
    for name, check in options_module._CHECKS.items():
        allowed = getattr(check, "keywords", {}).get("allowed")
        assert allowed is None or get_args(hints[name]) == allowed, name
    given: Options = {"memory_budget": "6GiB", "inner": "eager"}
    parsed = RematOptions.parse(given, check_planner=lambda name: None, environment=Environment.read({}))
    assert parsed.inner == "eager"
