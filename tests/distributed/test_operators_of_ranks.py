"""Operators of another library that communicate inside: never run but by the program, on ranks with any caches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distributed.rank_job import asked
from distributed.rank_job import trained as trained_by

PROGRAM, SIZE = "operators_program.py", 2
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
CASES = ("mean", "first", "gathered", "passed")
AGAIN = ("mean", "gathered")


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What the ranks tell of two jobs: with empty caches, and when only that of the first rank is empty.

    Each has the cases that it is asked for, the first one those of the second, too.
    """
    again = [case for case, job in asked(request, "case", "job") if job == 1]
    folder: Path = tmp_path_factory.mktemp("operators")
    cold = trained_by(PROGRAM, SIZE, folder, *asked(request, "case"))
    assert (folder / "cache1").is_dir()
    shutil.rmtree(folder / "cache0")
    (folder / "store").unlink(missing_ok=True)
    return [cold, trained_by(PROGRAM, SIZE, folder, *again) if again else []]


@pytest.mark.parametrize(("case", "job"), [*((case, 0) for case in CASES), *((case, 1) for case in AGAIN)])
def test_they_run_once_forward_and_backward_with_the_gradients_of_eager(
    jobs: list[list[Any]], case: str, job: int
) -> None:
    for rank in jobs[job]:
        assert rank[case]["plans"], "nothing was planned"
        assert rank[case]["error"]["runs"] == [2, 2]
        assert rank[case]["error"]["difference"] < 1e-6
