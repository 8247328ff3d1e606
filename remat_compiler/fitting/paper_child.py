"""The process of `paper_process`: reads a function and its arguments, and writes what it returns or raises."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

import cloudpickle  # type: ignore[import-untyped]

from remat_compiler.errors import PaperFailure, RematError
from remat_compiler.progress import progress_hidden, progress_on_stderr

_PROGRESS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "nothing": progress_hidden,
    "in the log": progress_on_stderr,
    "at a terminal": nullcontext,
}
_OWN = f"{Path(__file__).resolve().parents[1]}{os.sep}"


def main(question: str, answer: str) -> None:
    """Answer the question in one file with another."""
    try:
        with Path(question).open("rb") as file:
            sys.path[:], shows = pickle.load(file)
            function, arguments = pickle.load(file)
        with _PROGRESS[shows]():
            result = (False, function(*arguments))
    except RematError as error:
        result = (True, _sendable(error))
    except Exception as error:
        # Of the caller's own code, whose traceback is what they need.
        told = "".join(traceback.format_exception(type(error), error, _from_callers_code(error.__traceback__)))
        result = (True, PaperFailure(f"{type(error).__name__}: {error}\n{told.rstrip()}"))
    # Classes of the caller's main module are sent by value, as they came.
    Path(answer).write_bytes(cloudpickle.dumps(result))


def _from_callers_code(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame that is none of this project, if there is one."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OWN):
        found = found.tb_next
    return found or trace


def _sendable(error: RematError) -> RematError:
    """`error` without what Dynamo hung on it that another process cannot have, such as modules and frames."""
    for name, value in tuple(vars(error).items()):
        try:
            pickle.dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError):
            delattr(error, name)
    return error.with_traceback(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
