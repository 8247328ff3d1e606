"""torch's structured trace (``TORCH_TRACE``), which tools such as tlparse read, and the compilations it tells of."""

from __future__ import annotations

from typing import Literal

import torch
from torch._logging import _internal as logging_internal

Compilation = torch._guards.CompileContext
"""One compilation by Dynamo; it may be kept after it has ended."""


def current_compilation() -> Compilation | None:
    """Dynamo's compilation under way; `None` outside of one."""
    return torch._guards.CompileContext.try_get()


def compile_id(compilation: Compilation | None) -> str:
    """Dynamo's name of a compilation, such as ``0/0`` for the first one of the first function; empty without one."""
    return "" if compilation is None or compilation.compile_id is None else str(compilation.compile_id)


def structured_trace_is_on() -> bool:
    """Whether anything listens to the structured trace.

    That may be wrong before the first record of a process: torch's own listener finds out then that no trace was asked
    for.  Dynamo writes a record at the begin of every compilation.
    """
    return bool(logging_internal.trace_log.handlers)


def trace_artifact(
    name: str, encoding: Literal["string", "json"], text: str, compilation: Compilation | None = None
) -> None:
    """Add a text to the structured trace.

    Args:
        name: Its name, which tools show.
        encoding: Whether it is plain text or JSON.
        text: The text.
        compilation: The compilation that it belongs to; `None` for none.

    Raises:
        OSError: The trace cannot be written.
    """
    # The compilation may be over, and the next one under way, whose record this would become.
    with torch._guards.compile_context(compilation):
        logging_internal.trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": name, "encoding": encoding},
            payload_fn=lambda: text,
            expect_trace_id=False,
        )
