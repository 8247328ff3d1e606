"""What an earlier compilation ended with is believed where it answers the very same question, and no further."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from remat_compiler.compilation.graph_key import PlanKey
from remat_compiler.compilation.outcome import DECIDED, Outcome, StoredOutcome, kept_outcomes
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest

KEY = PlanKey("graph", "options", "7", "rates", "settings", "versions")
FIRST = PartitionRequest(budget_bytes=7)
OTHERS: dict[str, object] = {
    "reorders": False,
    "may_be_native": False,
    "budget_bytes": 5,
    "fraction": 0.5,
    "take_smallest": True,
    "planner": "chen_sqrt",
    "cost_model": "nominal",
    "inner": "eager",
    "max_slowdown": None,
    "time_limit": 3.0,
    "verify": 0,
    "free_layout": False,
    "early_loops": False,
    "between_bytes": 9,
    "sizes": (("s0", 10),),
    "layer_bytes": (5, 6),
    "offload_bytes": 1,
    "offload_place": "host",
    "budget_of": "reserved",
    "layout": "planned",
    "inplace_buffers": False,
    "chunks": 8,
    "leaving": (1,),
    "hooks_bytes": ((1, 64),),
    "gathers": True,
}
"""Another value of each field of a request."""


def asked(directory: Path, budget: int = 7) -> Outcome:
    return Outcome(RematOptions.parse({"memory_budget": budget}, check_planner=str), directory, KEY)


@pytest.fixture(autouse=True)
def anew() -> None:
    kept_outcomes.cache_clear()


def put(directory: Path, earlier: StoredOutcome) -> None:
    """Store `earlier` where the outcome of `KEY` is looked for."""
    kept_outcomes(directory).write(KEY.digest, earlier)


@pytest.mark.parametrize("name", [f.name for f in fields(PlanKey)])
def test_the_outcome_of_another_key_is_a_warned_miss(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, StoredOutcome(KEY, FIRST, 7, ()))
    assert asked(tmp_path).earlier(FIRST) == StoredOutcome(KEY, FIRST, 7, ())
    assert not caplog.records
    put(tmp_path, StoredOutcome(replace(KEY, **{name: "other"}), FIRST, 7, ()))
    assert asked(tmp_path).earlier(FIRST) is None
    assert "answers another question; it is planned anew" in caplog.text


@pytest.mark.parametrize("name", [f.name for f in fields(PartitionRequest)])
def test_of_its_request_only_that_is_taken_which_a_search_decides(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert OTHERS[name] != getattr(FIRST, name)
    put(tmp_path, StoredOutcome(KEY, replace(FIRST, **{name: OTHERS[name]}), 7, ()))  # type: ignore[arg-type]
    taken = asked(tmp_path).earlier(FIRST) is not None
    assert taken == (name in DECIDED) == (not caplog.records)


@pytest.mark.parametrize(("claimed", "limit"), [(5, 5), (7, 7), (10**12, 7), (None, 7)])
def test_its_limit_is_no_more_than_the_budget(claimed: int | None, limit: int, tmp_path: Path) -> None:
    put(tmp_path, StoredOutcome(KEY, FIRST, claimed, ()))
    earlier = asked(tmp_path).earlier(FIRST)
    assert earlier is not None
    assert earlier.limit_bytes == limit
