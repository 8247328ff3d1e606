"""The process of `paper_process`: reads a function and its arguments, and writes what it returns or raises."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from remat_compiler.errors import PaperFailure, RematError


def main(question: str, answer: str) -> None:
    """Answer the question in one file with another."""
    try:
        with Path(question).open("rb") as file:
            sys.path[:] = pickle.load(file)
            function, arguments = pickle.load(file)
        result = (False, function(*arguments))
    except RematError as error:
        result = (True, _sendable(error))
    except Exception as error:
        # Of the caller's own code, whose traceback is what they need.
        result = (True, PaperFailure(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    # Classes of the caller's main module are sent by value, as they came.
    Path(answer).write_bytes(cloudpickle.dumps(result))


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
