"""Import a library so that it cannot keep any object of the caller alive.

PuLP keeps, for each solver that is not installed, the exception of its import.  A traceback keeps its frames, and these
keep the frames that called them.  If a compilation imported PuLP directly, everything that its frames hold (a batch, a
loss, and with it all values saved for the backward) would stay until the process ends.  In a thread of its own an
import has no caller.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from threading import Thread


def import_in_thread(name: str) -> None:
    """Import the library `name`; a missing library is no error here, but where it is used."""
    if name not in sys.modules:
        thread = Thread(target=_imported, args=(name,), name=f"import {name}")
        thread.start()
        thread.join()


def _imported(name: str) -> None:
    with suppress(ImportError):
        importlib.import_module(name)
