"""Ranks of one job: the same plans though they measure other times, and the gradients of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import asked, run, told
from distributed.rank_job import trained as trained_by

PROGRAM, SIZE = "ranks_program.py", 2
ALWAYS = ("by themselves", "ddp", "lengths", "failing")
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank tells of the cases that are asked for."""
    cases = {*ALWAYS, *asked(request, "case")}
    return trained_by(PROGRAM, SIZE, tmp_path_factory.mktemp("ranks"), *sorted(cases))


def test_gradients_are_those_of_one_process_on_the_whole_batch(trained: list[Any]) -> None:
    for rank in trained:
        assert all(case["error"] < 1e-6 for case in rank.values()), {name: rank[name]["error"] for name in rank}


@pytest.mark.parametrize("case", ["ddp", "ddp again", "unused", "static", "fsdp blocks", "fsdp whole"])
def test_ranks_that_measure_other_times_have_the_same_plans(trained: list[Any], case: str) -> None:
    first, second = (rank[case] for rank in trained)
    assert first["plans"]
    assert first["plans"][-1] == second["plans"][-1]
    assert first["reports"] == second["reports"]


def test_without_agreement_their_plans_differ(trained: list[Any]) -> None:
    first, second = (rank["by themselves"] for rank in trained)
    assert first["plans"][-1] != second["plans"][-1]


def test_a_rank_whose_planner_fails_trains_without_a_plan(trained: list[Any]) -> None:
    first, last = (rank["failing"] for rank in trained)
    assert first["reports"] == trained[0]["ddp"]["reports"]
    assert last["plans"][-1] != first["plans"][-1]
    assert last["reports"] != first["reports"]


def test_every_rank_keeps_its_budget(trained: list[Any]) -> None:
    reports = [report for rank in trained for name in rank if name != "failing" for report in rank[name]["reports"]]
    assert reports
    assert all(peak <= budget for peak, budget, _ in reports)
    # Budgets were such that something is computed again.
    assert any(added for _, _, added in reports)


def test_a_rank_of_longer_inputs_has_a_plan_of_its_own(trained: list[Any]) -> None:
    first, second = (rank["lengths"] for rank in trained)
    assert len(second["reports"]) > len(first["reports"])


def test_a_rank_that_ends_while_it_plans_leaves_nobody_waiting(tmp_path: Path) -> None:
    first, last = run(PROGRAM, SIZE, tmp_path, "crash")
    assert last == 3
    # The other one planned without it, and learns of it from its process group.
    assert first == 0
    (message,) = told(tmp_path)
    assert "remat" not in message
