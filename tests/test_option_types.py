"""The options as a type: the names and the allowed values of the options that are checked."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from remat_compiler.options import Environment, Options, RematOptions


def test_the_type_of_the_options_has_their_names_and_allowed_values() -> None:
    hints = get_type_hints(Options)
    checked = {one.name: one.metadata["check"] for one in fields(RematOptions) if one.name != "inductor"}
    assert hints.keys() == checked.keys()
    for name, check in checked.items():
        allowed = getattr(check, "keywords", {}).get("allowed")
        assert allowed is None or get_args(hints[name]) == allowed, name
    given: Options = {"memory_budget": "6GiB", "inner": "eager"}
    parsed = RematOptions.parse(given, check_planner=lambda name: None, environment=Environment.read({}))
    assert parsed.inner == "eager"
