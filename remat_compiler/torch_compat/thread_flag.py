"""A mark of the thread that is in a block: changes of torch are process-wide, and other threads compile meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ThreadFlag:
    """Set in the threads that are in one of its blocks."""

    def __init__(self) -> None:
        self._here = threading.local()

    def __bool__(self) -> bool:
        return getattr(self._here, "is_set", False)

    @contextmanager
    def set(self) -> Iterator[None]:
        """Within the block, this thread has the mark."""
        # The former value comes back, for blocks nest.
        before = bool(self)
        self._here.is_set = True
        try:
            yield
        finally:
            self._here.is_set = before
