"""What an earlier compilation ended with is believed where it answers the very same question, and no further."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from other_values import other
from remat_compiler.compilation.graph_key import PlanKey
from remat_compiler.compilation.outcome import Outcome, StoredOutcome, kept_outcomes
from remat_compiler.options import PlanOptions, RematOptions
from remat_compiler.partition.request import PartitionRequest

KEY = PlanKey("graph", "options", "7", "rates", "settings", "versions")
FIRST = PartitionRequest(budget_bytes=7)


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
    put(tmp_path, StoredOutcome(KEY, replace(FIRST, **{name: other(FIRST, name)}), 7, ()))
    taken = asked(tmp_path).earlier(FIRST) is not None
    given = {*(one.name for one in fields(PlanOptions)), "verify", "sizes", "layer_bytes"}
    assert taken == (name not in given) == (not caplog.records)


@pytest.mark.parametrize(("claimed", "limit"), [(5, 5), (7, 7), (10**12, 7), (None, 7)])
def test_its_limit_is_no_more_than_the_budget(claimed: int | None, limit: int, tmp_path: Path) -> None:
    put(tmp_path, StoredOutcome(KEY, FIRST, claimed, ()))
    earlier = asked(tmp_path).earlier(FIRST)
    assert earlier is not None
    assert earlier.limit_bytes == limit
