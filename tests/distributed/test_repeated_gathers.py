"""Parameters gathered again in the backward: by all ranks or by none, within the budget, and never a job that hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import run, told
from distributed.rank_job import trained as trained_by

PROGRAM = "gather_program.py"
GATHER = "_c10d_functional.all_gather_into_tensor.default"
pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks tells."""
    cases = ("repeated", "voted down", "another batch")
    return trained_by(PROGRAM, 2, tmp_path_factory.mktemp("gathers"), *cases)


def test_a_budget_that_saved_gathers_exceed_is_kept_to_the_byte(trained: list[Any]) -> None:
    for rank in trained:
        case = rank["repeated"]
        assert case["error"]["gradients"] < 1e-6
        assert case["error"]["warnings"] == []
        # The plans before the last one keep what is gathered, and none of them fits.
        assert [GATHER in targets for targets in case["repeated"]] == [False] * (len(case["repeated"]) - 1) + [True]
        ((peak_bytes, budget_bytes, added_ns),) = case["reports"]
        assert min(case["error"]["peaks"]) == peak_bytes <= budget_bytes
        assert added_ns > 0


def test_ranks_that_would_communicate_in_other_orders_all_repeat_nothing(trained: list[Any]) -> None:
    for number, rank in enumerate(trained):
        case = rank["voted down"]
        assert case["error"]["gradients"] < 1e-6
        (told_of,) = [one for one in case["error"]["warnings"] if "kept for the backward" in one]
        assert "communicates in another order than rank" in told_of
        assert f"rank {number}" in told_of
        # It ran at the smallest peak of plans that keep what is gathered.
        ((peak_bytes, budget_bytes, _),) = case["reports"]
        assert min(case["error"]["peaks"]) == peak_bytes > budget_bytes


def test_a_rank_that_compiles_again_by_itself_keeps_to_what_was_voted(trained: list[Any]) -> None:
    graphs = [rank["another batch"]["error"]["graphs"] for rank in trained]
    assert graphs == [2, 1]
    for rank in trained:
        assert rank["another batch"]["error"]["gradients"] < 1e-6
        assert GATHER in rank["another batch"]["repeated"][-1]
    # The same steps, at both sizes and on both ranks.
    assert len({rank["another batch"]["plans"][-1] for rank in trained}) == 1


def test_a_rank_that_crashes_is_waited_for_no_longer_than_the_time(tmp_path: Path) -> None:
    assert run(PROGRAM, 2, tmp_path, "crash") == [0, 3]
    (rank,) = told(tmp_path)
    assert rank["crash"]["error"]["refused"].startswith("no plan fits memory_budget=")
    (told_of,) = rank["crash"]["error"]["warnings"]
    assert "rank 1 did not compile the same graph within 3 s" in told_of


@pytest.mark.slow
def test_code_that_inductor_emits_repeats_gathers(tmp_path: Path) -> None:
    for rank in trained_by(PROGRAM, 2, tmp_path, "repeated, inductor"):
        case = rank["repeated, inductor"]
        assert case["error"]["gradients"] < 1e-6
        assert GATHER in case["repeated"][-1]
        ((peak_bytes, budget_bytes, _),) = case["reports"]
        assert peak_bytes <= budget_bytes


@pytest.mark.slow
def test_a_job_that_finds_the_outcome_of_an_earlier_one_votes_again(tmp_path: Path) -> None:
    first = trained_by(PROGRAM, 2, tmp_path, "repeated")
    (tmp_path / "store").unlink()
    again = trained_by(PROGRAM, 2, tmp_path, "repeated")
    for before, after in zip(first, again, strict=True):
        # At once, without the plans that do not fit.
        assert len(after["repeated"]["plans"]) == 1
        assert GATHER in after["repeated"]["repeated"][-1]
        assert after["repeated"]["reports"] == before["repeated"]["reports"]
        assert after["repeated"]["error"]["gradients"] < 1e-6
