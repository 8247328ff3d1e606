"""The examples on several processes: DDP and FSDP2 under a budget learn the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from distributed.examples_program import EXAMPLES
from forked import free_ports, run_together

PROGRAM = Path(__file__).with_name("examples_program.py")
SIZE = 2
pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo"),
]


def environment() -> dict[str, str]:
    """In which examples run: by the interpreter, without what others have planned."""
    own = {"OMP_NUM_THREADS": "1", "REMAT_INNER": "eager", "REMAT_DISABLE_CACHE": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)}


def run_examples(names: tuple[str, ...], folder: Path, *arguments: str) -> list[str]:
    """What the processes of each example tell, which run one after the other."""
    named = ",".join(f"{name}={port}" for name, port in zip(names, free_ports(len(names))))
    commands = [[str(PROGRAM), str(rank), str(SIZE), named, *arguments] for rank in range(SIZE)]
    done = run_together(commands, folder, environment(), 600)
    assert [one.returncode for one in done] == [0] * SIZE
    written = [text for one in done for text in (one.stdout, one.stderr)]
    parts = [re.split(r"^example .*\n", text, flags=re.MULTILINE)[1:] for text in written]
    return ["".join(of_example) for of_example in zip(*parts, strict=True)]


def losses(told: str) -> list[float]:
    return [float(line.split()[-1]) for line in told.splitlines() if line.startswith("step ")]


def test_ddp_and_fsdp2_learn_the_same_under_a_budget(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = ("train_ddp.py", "train_fsdp2.py")
    said, of_blocks = run_examples(names, tmp_path, "--steps", "2", "--budget", "6MiB")
    ddp, sharded = losses(said), losses(of_blocks)
    assert len(ddp) == len(sharded) == 2, said + of_blocks
    assert ddp == pytest.approx(sharded, abs=2e-4)
    assert ddp[1] < ddp[0]
    # Told by one process only.
    assert said.count("remat: SmallBert runs 2 graphs, peak ") == 1
    assert "of 6.0 MiB" in of_blocks


@pytest.mark.slow
def test_an_example_is_launched_as_its_page_says() -> None:
    pytest.importorskip("transformers")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SIZE)]
    command = [*torchrun, str(EXAMPLES / "train_ddp.py"), "--steps", "2", "--budget", "6MiB"]
    told = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=True).stdout
    assert len(losses(told)) == 2
