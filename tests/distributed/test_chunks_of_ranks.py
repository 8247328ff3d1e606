"""Losses in chunks under DDP and FSDP2, over micro-batches: gradients are those of one eager process."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import asked, trained

CASES = ["DDP", "FSDP2", "DDP, as planned"]
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank tells of the cases that are asked for."""
    return trained("chunks_program.py", 2, tmp_path_factory.mktemp("chunks"), *asked(request, "case"))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_process(ranks: list[Any], case: str) -> None:
    for rank in ranks:
        found = rank[case]["error"]
        assert found["error"] < 1e-6
        assert found["chunks"]
        assert set(found["chunks"]) == {4} or case.endswith("as planned")


@pytest.mark.parametrize("case", CASES)
def test_ranks_have_the_same_plans(ranks: list[Any], case: str) -> None:
    assert ranks[0][case]["plans"] == ranks[1][case]["plans"]
