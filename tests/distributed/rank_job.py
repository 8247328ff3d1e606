"""Run a program as the ranks of one job, to their end, and read what they tell."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from forked import fork_server, run_file

MOST_S = 300
"""Seconds after which a job counts as hanging; the programs' own limit for a collective is far below."""


def run(program: str, size: int, folder: Path, *mode: str) -> list[int]:
    """Run a process for each rank, to its end; their exit codes.

    Args:
        program: File beside this one, see `rank_process`.
        size: Number of ranks.
        folder: Where they meet, and leave what they tell.
        mode: Further arguments.

    Raises:
        TimeoutError: A rank hangs; all are killed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    path = Path(__file__).with_name(program)
    context = fork_server() or multiprocessing.get_context("spawn")
    commands = [[str(path), str(rank), str(size), str(folder), *mode] for rank in range(size)]
    said = [[folder / f"{name}{rank}" for name in ("stdout", "stderr")] for rank in range(size)]
    processes = [
        context.Process(target=run_file, args=(command, environment, files)) for command, files in zip(commands, said)
    ]
    until = monotonic() + MOST_S
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(until - monotonic(), 0.0))
        if any(process.is_alive() for process in processes):
            raise TimeoutError(f"{program} did not end within {MOST_S} s")
        return [process.exitcode for process in processes if process.exitcode is not None]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        # Shown by pytest where a test fails.
        for _, errors in said:
            print(errors.read_text(encoding="utf-8")[-4000:] if errors.exists() else "")


def told(folder: Path) -> list[Any]:
    """What each rank told, in order."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("rank*.json"))]


def trained(program: str, size: int, folder: Path, *mode: str) -> list[Any]:
    """What each rank tells of a job that ends well."""
    assert run(program, size, folder, *mode) == [0] * size
    return told(folder)
