"""Made-up profiles as torch's profiler writes them, and dumps of planned graphs to put beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planned import problem, report, result
from remat_compiler.report.dump import dump_files, write_dump

START_US = 4_718_881_305_443.622
"""When a step began, as profiles have it: microseconds since the machine was started, or since 1970."""


def dumped(directory: Path, *graphs: tuple[str, str]) -> Path:
    """A dump of graphs by name and compilation."""
    for name, compile_id in graphs:
        files = dump_files(report(graph_name=name), problem(), result(), compile_id=compile_id)
        write_dump(directory, name, files)
    return directory


def call_of(compile_id: str, begin_us: float, *sequences: int, backward: bool = True) -> list[dict[str, Any]]:
    """What a profile has of one call: the region, a forward for each sequence number, and their backwards after it."""
    thread = {"ph": "X", "cat": "cpu_op", "pid": 77, "tid": 78}
    found = [{**thread, "name": f"Torch-Compiled Region: {compile_id}", "ts": begin_us, "dur": 100.0, "args": {}}]
    for i, number in enumerate(sequences):
        args = {"Sequence number": number}
        found.append({**thread, "name": "CompiledFunction", "ts": begin_us + 10 + 20 * i, "dur": 15.0, "args": args})
        if backward:
            later = {"ts": begin_us + 200 - 20 * i, "dur": 30.0, "args": args, "tid": 99}
            found.append({**thread, "name": "CompiledFunctionBackward", **later})
    return found


def profile_of(*calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A profile of these calls."""
    return {"schemaVersion": 1, "traceEvents": [event for call in calls for event in call], "traceName": "mine"}
