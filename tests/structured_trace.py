"""torch's structured trace, listened to within a process, and read from the file that ``TORCH_TRACE`` leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._logging import _internal as logging_internal


@dataclass(frozen=True)
class Artifact:
    """One artifact of the trace."""

    name: str
    encoding: str
    text: str
    compile_id: str


class Listener(logging.Handler):
    """Keeps the artifacts of this package; fails at each of them if it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.artifacts: list[Artifact] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = record.__dict__["metadata"]
        if not fields.get("artifact", {}).get("name", "").startswith("remat_"):
            return
        if self.error is not None:
            raise self.error
        self.artifacts.append(_artifact(fields, record.__dict__["payload"]))


def _artifact(fields: dict[str, Any], text: str) -> Artifact:
    about = fields["artifact"]
    return Artifact(
        about["name"], about["encoding"], text, f"{fields.get('frame_id')}/{fields.get('frame_compile_id')}"
    )


@contextmanager
def listening(error: Exception | None = None) -> Iterator[Listener]:
    """Listen within the block."""
    listener = Listener(error)
    logging_internal.trace_log.addHandler(listener)
    try:
        yield listener
    finally:
        logging_internal.trace_log.removeHandler(listener)


@contextmanager
def nobody_listening() -> Iterator[None]:
    """Without the listeners that torch has by itself."""
    log = logging_internal.trace_log
    before, log.handlers = log.handlers, []
    try:
        yield
    finally:
        log.handlers = before


def read_trace(file: Path) -> list[Artifact]:
    """The artifacts of this package in a trace: each record is a line, which its text follows, indented by a tab."""
    found: list[Artifact] = []
    fields: dict[str, Any] = {}
    text: list[str] = []

    def end_record() -> None:
        if fields.get("artifact", {}).get("name", "").startswith("remat_"):
            found.append(_artifact(fields, "\n".join(text)))

    for line in file.read_text(encoding="utf-8").split("\n"):
        if line.startswith("\t"):
            text.append(line[1:])
        elif line:
            end_record()
            fields, text = json.loads(line[line.index("]") + 1 :]), []
    end_record()
    return found
