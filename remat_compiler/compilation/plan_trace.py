"""Plans as artifacts of torch's structured trace, so that tlparse lists them under the compilation they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from remat_compiler import torch_compat
from remat_compiler.log import logger_of
from remat_compiler.report.dump import REPORT_FILE, TIMELINE_FILE

logger = logger_of(__name__)

_ARTIFACTS: Final[Mapping[str, tuple[str, Literal["string", "json"]]]] = {
    "summary.txt": ("remat_summary", "string"),
    REPORT_FILE: ("remat_report", "json"),
    "problem.json": ("remat_problem", "json"),
    "plan.json": ("remat_plan", "json"),
    "forward.py": ("remat_forward_graph", "string"),
    "backward.py": ("remat_backward_graph", "string"),
    TIMELINE_FILE: ("remat_timeline", "json"),
}
"""Name and encoding of the artifact that a file of the dump becomes, in the order in which they are listed."""


def trace_plan(files: Mapping[str, str], compilation: torch_compat.Compilation | None) -> None:
    """Add the plan of one graph to the structured trace.

    A trace never stops a training: one that cannot be written is one logged warning.

    Args:
        files: Files of its dump by name; those that are no artifact are left out.
        compilation: The compilation that it belongs to.
    """
    try:
        for file, (name, encoding) in _ARTIFACTS.items():
            if file in files:
                torch_compat.trace_artifact(name, encoding, files[file], compilation)
    except Exception as error:  # Listeners are foreign code, which may raise anything, and training must go on.
        logger.warning("the plan is not added to torch's structured trace: %s; training goes on", error)
