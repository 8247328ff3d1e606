"""The examples on several processes: DDP and FSDP2 under a budget learn the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.in_turn,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


def losses(name: str, *arguments: str) -> tuple[list[float], str]:
    """The losses of two steps on two processes, and all that was told."""
    pytest.importorskip("transformers")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REMAT_INNER": "eager", "REMAT_DISABLE_CACHE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / name), "--steps", "2", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
    return found, done.stdout + done.stderr


def test_ddp_and_fsdp2_learn_the_same_under_a_budget() -> None:
    (ddp, said), (sharded, of_blocks) = (
        losses("train_ddp.py", "--budget", "6MiB"),
        losses("train_fsdp2.py", "--budget", "6MiB"),
    )
    assert len(ddp) == len(sharded) == 2, said + of_blocks
    assert ddp == pytest.approx(sharded, abs=2e-4)
    assert ddp[1] < ddp[0]
    # Told by one process only.
    assert said.count("remat: SmallBert runs 2 graphs, peak ") == 1
    assert "of 6.0 MiB" in of_blocks
