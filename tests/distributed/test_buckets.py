"""Four ranks of DDP with several buckets: one budget for the graphs of a step, and equal plans whatever differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import run, told
from distributed.rank_job import trained as trained_by

PROGRAM, SIZE, BUCKETS = "buckets_program.py", 4, 3
AGREEING = ("dropout", "static", "caches")
# Slow, since each of the four ranks compiles many graphs; `test_ranks` has the same with two ranks, and one bucket.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank tells."""
    return trained_by(PROGRAM, SIZE, tmp_path_factory.mktemp("buckets"))


def test_gradients_are_those_of_one_process_or_of_eager_ddp(trained: list[Any]) -> None:
    """Interpreted operators are the user's own, so dropout draws what it draws in eager."""
    for rank in trained:
        assert all(case["error"] < 1e-6 for case in rank.values()), {name: rank[name]["error"] for name in rank}


@pytest.mark.parametrize("case", AGREEING)
def test_all_ranks_have_the_same_plans(trained: list[Any], case: str) -> None:
    told_last = [(rank[case]["plans"][-1], rank[case]["reports"]) for rank in trained]
    assert told_last.count(told_last[0]) == SIZE


@pytest.mark.parametrize("case", AGREEING)
def test_the_graphs_of_a_step_share_one_budget(trained: list[Any], case: str) -> None:
    for rank in trained:
        steps = rank[case]["steps"]
        # One report for each bucket, and all of them have the step of all buckets.
        assert len(steps) == BUCKETS
        assert steps.count(steps[0]) == BUCKETS
        graphs, peak_bytes, limit_bytes = steps[0]
        assert graphs == BUCKETS
        assert peak_bytes <= limit_bytes
        # A fraction is one of the step: its graphs need not have bytes of their own.
        assert all(budget is None or peak <= budget for peak, budget, _ in rank[case]["reports"])
        assert any(added for _, _, added in rank[case]["reports"]), "the budget asks for nothing"


@pytest.mark.slow
def test_a_rank_that_ends_while_it_plans_leaves_nobody_waiting(tmp_path: Path) -> None:
    *others, last = run(PROGRAM, SIZE, tmp_path, "crash")
    assert last == 3
    assert others == [0] * (SIZE - 1)
    # They planned without it, and learn of it from their process group.
    messages = told(tmp_path)
    assert len(messages) == SIZE - 1
    assert not any("remat" in message for message in messages)
