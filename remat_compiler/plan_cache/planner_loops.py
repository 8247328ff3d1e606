"""Tell the user why a first plan takes long: Numba compiles the planners' inner loops, once per installation.

Numba keeps compiled loops next to the sources, or in ``NUMBA_CACHE_DIR``.  Loading them from there is not logged.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from remat_compiler.log import logger_of
from remat_compiler.progress import QUIET_SECONDS

logger = logger_of(__name__)


@cache
def tell_of_compiling() -> None:
    """Log once in this process that loops are compiled, if that takes more than two seconds."""
    from numba.core import event

    register: Any = event.register
    register("numba:compile", _listener(event.Listener)())


def _listener(base: Any) -> Any:
    class Loops(base):  # type: ignore[misc]
        """Adds up the time of compiling; loops that call others compile them within their own time."""

        def __init__(self) -> None:
            self.depth = 0
            self.since = self.spent_s = 0.0
            self.told = False

        def on_start(self, event: Any) -> None:
            now = time.monotonic()
            # Compilations nest; only the outermost one starts and stops the clock.
            if not self.depth:
                self.since = now
            self.depth += 1
            spent_s = self.spent_s + now - self.since
            # The warning is about the planners' loops, though other packages may compile theirs in this process.
            ours = event.data["dispatcher"].py_func.__module__.startswith("remat_passes.")
            if ours and not self.told and spent_s >= QUIET_SECONDS:
                self.told = True
                logger.warning("compiling the planners' loops, once for this installation; the first plan waits for it")

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if not self.depth:
                self.spent_s += time.monotonic() - self.since

    return Loops
