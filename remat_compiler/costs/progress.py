"""Tell the user how far a long measurement is."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
"""Nothing is said before, nor more often."""


class Progress:
    """Counts up to `total`: on the terminal where there is one, else in the log."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.start = self.said = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.start

    def show(self, done: int) -> None:
        """Say that `done` of the total are done, if it is time to."""
        now = time.monotonic()
        if now - self.said < QUIET_SECONDS:
            return
        self.said = now
        text = f"remat: {self.what}: {done} of {self.total} after {self.seconds:.0f} s"
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)
        else:
            log.info(text)
