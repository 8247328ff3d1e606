"""What the compiler warns of, for tests that run outside of pytest's own fixtures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """The texts of the compiler's warnings within the block, as they come."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("remat_compiler")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
