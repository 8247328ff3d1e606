"""Tell a person at a terminal what takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

DELAY_SECONDS = 2.0
"""What ends sooner says nothing."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """While the block runs longer than two seconds, a line on a terminal says what runs and for how long."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done, time.monotonic()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: threading.Event, start: float) -> None:
    shown = False
    while not done.wait(DELAY_SECONDS if not shown else 1.0):
        sys.stderr.write(f"\rremat: {what}, {time.monotonic() - start:.0f} s ")
        sys.stderr.flush()
        shown = True
    if shown:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
