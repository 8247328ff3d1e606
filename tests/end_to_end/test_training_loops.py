"""Training loops as people write them: eager's gradients, no crash, and never over the budget without a word."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.judged_loops import outcome_of, process_group
from end_to_end.training_loops import LOOPS
from end_to_end.two_ranks import LOOPS_OF_TWO, outcomes_of_two

KNOWN: dict[str, str] = {}
"""Loops for which the promise does not hold yet, and why."""
SLOW = frozenset(name for name in LOOPS if name.startswith("DDP")) - {"DDP"}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    with process_group():
        yield


def _row(name: str) -> object:
    marks = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
    marks += [pytest.mark.slow] if name in SLOW else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_row(name) for name in LOOPS])
def test_the_promise_holds(name: str) -> None:
    needs = LOOPS[name].needs
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs the package {needs}")
    outcome = outcome_of(name)
    assert outcome.good, outcome


@pytest.mark.parametrize(
    "name",
    [name if name == "graph break after each layer" else pytest.param(name, marks=pytest.mark.slow) for name in LOOPS],
)
def test_the_promise_holds_where_values_are_moved(name: str) -> None:
    needs = LOOPS[name].needs
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs the package {needs}")
    outcome = outcome_of(name, 0.6, offload_budget="1GiB", offload_tier="host")
    assert outcome.good, outcome


def test_something_is_planned_and_kept() -> None:
    """The judgement itself: a plain loop under a budget that needs recomputation is planned, measured and kept."""
    outcome = outcome_of("one graph")
    assert outcome.verdict == "kept"
    assert outcome.planned == 1
    assert 0 < outcome.measured_bytes <= outcome.budget_bytes < outcome.stock_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", [_row(name) for name in LOOPS_OF_TWO])
def test_two_ranks(name: str) -> None:
    assert multiprocessing.get_all_start_methods(), "the platform starts no processes"
    outcomes = outcomes_of_two(name)
    assert len(outcomes) == 2
    assert all(outcome.good for outcome in outcomes), outcomes
