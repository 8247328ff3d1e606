"""Tell a person why a first plan takes long: Numba compiles the planners' inner loops, once for an installation.

Numba keeps what it compiled beside the sources, or in ``NUMBA_CACHE_DIR``.  What is loaded from there says nothing.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Any

from remat_compiler.progress import QUIET_SECONDS

logger = logging.getLogger(__name__)


@cache
def tell_of_compiling() -> None:
    """Have the log say, once in this process, that loops are compiled, where that takes more than two seconds."""
    from numba.core import event

    register: Any = event.register
    register("numba:compile", _listener(event.Listener)())


def _listener(base: Any) -> Any:
    class Loops(base):  # type: ignore[misc]
        """Adds up what compiling takes; loops that call others compile them within their own time."""

        def __init__(self) -> None:
            self.depth = 0
            self.since = self.spent_s = 0.0
            self.told = False

        def on_start(self, event: Any) -> None:
            now = time.monotonic()
            if not self.depth:
                self.since = now
            self.depth += 1
            spent_s = self.spent_s + now - self.since
            ours = event.data["dispatcher"].py_func.__module__.startswith("remat_passes.")
            if ours and not self.told and spent_s >= QUIET_SECONDS:
                self.told = True
                logger.warning("compiling the planners' loops, once for this installation; the first plan waits for it")

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if not self.depth:
                self.spent_s += time.monotonic() - self.since

    return Loops
