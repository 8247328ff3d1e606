"""Import a library so that it cannot keep anything of the caller's alive.

PuLP keeps, for each solver that is not installed, the exception of its import.  A traceback keeps its frames, and these
the frames that called them: imported amid a compilation, everything that those hold (a batch, a loss, and with it all
that its backward saved) would stay until the process ends.  In a thread of its own an import has no caller.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from threading import Thread


def import_apart(name: str) -> None:
    """Import the library `name`; where it is missing, nothing is said: whoever needs it says so."""
    if name not in sys.modules:
        thread = Thread(target=_imported, args=(name,), name=f"import {name}")
        thread.start()
        thread.join()


def _imported(name: str) -> None:
    with suppress(ImportError):
        importlib.import_module(name)
