"""The loggers of this project: each message begins with its sender.

    logger = logger_of(__name__)
    logger.warning("%d operators are not timed", 3)     # remat: 3 operators are not timed

A program without handlers of its own has Python's handler of last resort, which prints the bare message of a warning;
so do handlers whose format is only that.  The sender is part of the message, so that all of them show it.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

SENDER = "remat"

if TYPE_CHECKING:
    Logger: TypeAlias = logging.LoggerAdapter[logging.Logger]
else:  # it takes a parameter from Python 3.11 on
    Logger = logging.LoggerAdapter


class _Signed(Logger):
    """Puts the sender before each message; file and line of a record stay those of the caller."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The message with its sender."""
        return f"{SENDER}: {msg}", kwargs


def logger_of(module: str) -> Logger:
    """The logger of a module, below the logger of its package."""
    return _Signed(logging.getLogger(module), {})
