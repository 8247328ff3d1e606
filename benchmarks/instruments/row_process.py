"""A row of a table from a process of its own, which prints it as a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def row_of_process(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float
) -> tuple[dict[str, Any] | None, str]:
    """The last JSON object that a program prints, and the last line of its errors.

    Args:
        arguments: What Python is called with: ``-m``, a module and its arguments.
        environment: Variables beside those of this process.
        seconds: Time after which it is ended.

    Returns:
        `None` in place of the object if it printed none; the line says why.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **environment},
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    last = (done.stderr.strip().splitlines() or [""])[-1][:150]
    return (json.loads(found[-1]) if found else None), f"the process ended with {done.returncode}: {last}"
