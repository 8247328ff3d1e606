"""Run a program as the ranks of one job, to their end, and read what they tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MOST_S = 300
"""Seconds after which a job counts as hanging; the programs' own limit for a collective is far below."""


def run(program: str, size: int, folder: Path, *mode: str) -> list[subprocess.Popen[str]]:
    """Run a process for each rank, to its end.

    Args:
        program: File beside this one, see `rank_process`.
        size: Number of ranks.
        folder: Where they meet, and leave what they tell.
        mode: Further arguments.

    Raises:
        subprocess.TimeoutExpired: A rank hangs; all are killed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    path = Path(__file__).with_name(program)
    processes = [
        subprocess.Popen(
            [sys.executable, str(path), str(rank), str(size), str(folder), *mode],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=MOST_S)
            # Shown by pytest where a test fails.
            print(said[-4000:])
    finally:
        for process in processes:
            process.kill()
    return processes


def told(folder: Path) -> list[Any]:
    """What each rank told, in order."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("rank*.json"))]


def trained(program: str, size: int, folder: Path, *mode: str) -> list[Any]:
    """What each rank tells of a job that ends well."""
    assert [process.returncode for process in run(program, size, folder, *mode)] == [0] * size
    return told(folder)
