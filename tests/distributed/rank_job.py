"""Run a program as the ranks of one job, to their end, and read what they tell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from forked import run_together

MOST_S = 300
"""Seconds after which a job counts as hanging; the programs' own limit for a collective is far below."""


def asked(request: pytest.FixtureRequest, *parameters: str) -> list[Any]:
    """What the tests of this file that are to run are parametrised with: values of one parameter, or of several.

    Tests without these parameters ask for nothing.
    """
    found: dict[Any, None] = {}
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if item.path == request.path and given is not None and set(parameters) <= set(given.params):
            values = tuple(given.params[name] for name in parameters)
            found[values if len(parameters) > 1 else values[0]] = None
    return list(found)


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
    commands = [[str(path), str(rank), str(size), str(folder), *mode] for rank in range(size)]
    return [done.returncode for done in run_together(commands, folder, environment, MOST_S)]


def told(folder: Path) -> list[Any]:
    """What each rank told, in order."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("rank*.json"))]


def trained(program: str, size: int, folder: Path, *mode: str) -> list[Any]:
    """What each rank tells of a job that ends well."""
    assert run(program, size, folder, *mode) == [0] * size
    return told(folder)
