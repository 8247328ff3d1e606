"""Collectives within planned graphs: tensor, sequence and head parallelism, and FSDP that gathers within the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import asked
from distributed.rank_job import trained as trained_by

PROGRAM = "tensor_program.py"
ONE_GRAPH = ("tensor", "tensor, inductor", "sequence", "heads", "simple fsdp", "unequal")
ALWAYS = ("tensor, blocks", "unequal")
pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks tells of the cases that are asked for."""
    cases = {*ALWAYS, *asked(request, "case")}
    return trained_by(PROGRAM, 2, tmp_path_factory.mktemp("tensor"), *sorted(cases))


def check_case(ranks: list[Any]) -> None:
    """Right gradients, budgets kept, and no collective twice."""
    for rank in ranks:
        assert rank["error"]["gradients"] < 1e-6
        assert rank["reports"]
        assert all(peak <= budget for peak, budget, _ in rank["reports"])
        assert not any("c10d" in target for targets in rank["repeated"] for target in targets)


@pytest.mark.parametrize("case", [*ONE_GRAPH, "tensor, blocks"])
def test_gradients_are_those_of_one_process_within_the_budget(trained: list[Any], case: str) -> None:
    check_case([rank[case] for rank in trained])
    assert any(targets for rank in trained for targets in rank[case]["repeated"]), "the budget asks for nothing"


@pytest.mark.parametrize("case", ONE_GRAPH)
def test_the_predicted_peak_is_the_measured_one(trained: list[Any], case: str) -> None:
    """To the byte, in a step in which gloo's thread lets go of its tensors as soon as a collective is complete."""
    for rank in trained:
        ((peak_bytes, _, _),) = rank[case]["reports"]
        assert min(rank[case]["error"]["peaks"]) == peak_bytes
        assert not any("not known: an input" in note for note in rank[case]["error"]["notes"])


def test_the_graphs_of_blocks_share_one_budget(trained: list[Any]) -> None:
    for rank in trained:
        steps = rank["tensor, blocks"]["steps"]
        assert steps.count(steps[0]) == len(steps) == 2
        _, peak_bytes, limit_bytes = steps[0]
        assert min(rank["tensor, blocks"]["error"]["peaks"]) <= peak_bytes <= limit_bytes


@pytest.mark.parametrize("case", [*ONE_GRAPH[:-1], "tensor, blocks"])
def test_ranks_have_the_same_plans(trained: list[Any], case: str) -> None:
    first, second = (rank[case] for rank in trained)
    assert first["plans"][-1] == second["plans"][-1]
    assert first["reports"] == second["reports"]


def test_ranks_of_unequal_plans_communicate_alike(trained: list[Any]) -> None:
    """One runs torch's partition of its checkpoint regions, the other one a plan: neither waits for the other."""
    first, second = (rank["unequal"] for rank in trained)
    assert first["plans"][-1] != second["plans"][-1]
    assert first["reports"][0][2] == 0 < second["reports"][0][2]


@pytest.mark.slow
def test_tensor_parallelism_with_fsdp2_on_two_meshes(tmp_path: Path) -> None:
    ranks = [rank["two meshes"] for rank in trained_by(PROGRAM, 4, tmp_path)]
    check_case(ranks)
    told_last = [(rank["plans"][-1], rank["reports"]) for rank in ranks]
    assert told_last.count(told_last[0]) == 4
