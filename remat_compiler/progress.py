"""Show the progress of long work: in a terminal on one line that is rewritten, elsewhere in the log.

    with progress("timing operators", len(calls)) as bar:
        for call in calls:
            time_it(call)
            bar.advance()

Work that ends within two seconds is not shown.  Blocks nest; only the innermost is shown.  The log has lines of level
INFO, which commands write to stderr (`progress_on_stderr`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from remat_compiler.log import logger_of

logger = logger_of(__name__)

QUIET_SECONDS = 2.0
"""Seconds before anything is shown, and between two lines in the log."""
REDRAW_SECONDS = 1.0
"""Seconds between two redraws of the line in a terminal."""

LOG_SECONDS = 15.0
"""Seconds between two lines in the log about work that does not advance."""

_ERASE_LINE = "\r\033[K"


class Progress:
    """The progress of one block.

    Attributes:
        what: Name of the work.
        total: Number of times that it advances, or `None` if that is not known.
        done: Number of times that it has advanced.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._start = self._logged = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._start

    def advance(self) -> None:
        """Note that one more of the total is done."""
        self.done += 1
        if time.monotonic() - self._logged >= QUIET_SECONDS and not sys.stderr.isatty():
            self.tell()

    def tell(self) -> None:
        """Write a line to the log."""
        self._logged = time.monotonic()
        text = str(self)  # as it is now: a handler may format later
        logger.info("%s", text)

    def __str__(self) -> str:
        count = "" if self.total is None else f" {self.done} of {self.total},"
        return f"{self.what},{count} {self.seconds:.0f} s"


_running: list[Progress] = []
"""Running blocks, the innermost last."""
_hidden = False


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Progress]:
    """Show `what` while the block runs; the block may call `advance` on the yielded object, `total` times."""
    shown = Progress(what, total)
    _running.append(shown)
    done = threading.Event()
    # A thread, so that the seconds go on while a long call into native code runs.
    show = None if _hidden else _show if sys.stderr.isatty() else _tell if is_in_log() else None
    thread = None if show is None else threading.Thread(target=show, args=(shown, done), daemon=True)
    if thread is not None:
        thread.start()
    try:
        yield shown
    finally:
        done.set()
        # Joined, so that the line is erased before anything else is written.
        if thread is not None:
            thread.join()
        _running.remove(shown)


def is_in_log() -> bool:
    """Whether anybody reads in the log how far long work has come."""
    return logger.isEnabledFor(logging.INFO)


def is_running() -> bool:
    """Whether a block runs here, which shows progress or will."""
    return bool(_running)


@contextmanager
def progress_hidden() -> Iterator[None]:
    """Within the block nothing is shown, since another process shows the progress of all."""
    global _hidden
    _hidden, before = True, _hidden
    try:
        yield
    finally:
        _hidden = before


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Within the block, stderr has a line now and then about long work; at a terminal one line shows that already."""
    own = logger.logger
    if sys.stderr.isatty() or is_in_log():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = own.level
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.removeHandler(handler)
        own.setLevel(level)


def _tell(shown: Progress, done: threading.Event) -> None:
    """Write a line to the log from time to time until `done` is set."""
    while not done.wait(LOG_SECONDS):
        if _running[-1:] == [shown]:
            shown.tell()


def _show(shown: Progress, done: threading.Event) -> None:
    """Rewrite the line until `done` is set."""
    wait = QUIET_SECONDS
    while not done.wait(wait):
        if _running[-1:] == [shown]:
            sys.stderr.write(f"{_ERASE_LINE}remat: {shown} ")
            sys.stderr.flush()
            wait = REDRAW_SECONDS
    # Only if it was ever drawn.
    if wait == REDRAW_SECONDS:
        sys.stderr.write(_ERASE_LINE)
        sys.stderr.flush()
