"""A function in a process of its own that sees no GPU: what a paper device changes of torch cannot all be undone."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat_compiler.errors import PaperFailure
from remat_compiler.progress import is_in_log, is_running


def call_in_process(function: Callable[..., Any], *arguments: Any, hide_gpus: bool = True) -> Any:
    """What ``function(*arguments)`` returns in a new process, which sees no GPU unless it is to.

    Functions of the main module, and those within functions, are sent along by value; those of other modules are
    imported there.

    Raises:
        RematError: As the function raised it.
        PaperFailure: The function raised something else, or the process died.
    """
    # Not above: whatever imports the compiler would need it, such as the build, which has few packages.
    import cloudpickle  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(prefix="remat-paper-") as folder:
        shows = "nothing" if is_running() else "in the log" if is_in_log() else "at a terminal"
        question, answer = Path(folder) / "question", Path(folder) / "answer"
        try:
            # One after the other: modules of the function are found by the path.
            question.write_bytes(pickle.dumps((sys.path, shows)) + cloudpickle.dumps((function, arguments)))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise PaperFailure(
                f"what was given cannot be sent to another process ({error}); give functions that make the model and "
                "its inputs, rather than these themselves"
            ) from error
        # Devices are hidden before the process imports torch.
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {}
        code = exit_code(question, answer, {**os.environ, **hidden})
        if not answer.exists():
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise PaperFailure(f"the process {reason} without an answer; its messages stand above")
        failed, value = pickle.loads(answer.read_bytes())
    if failed:
        raise value
    return value


def exit_code(question: Path, answer: Path, environment: dict[str, str]) -> int:
    """Run `paper_child` on the two files in a new process; its exit code, negative for the signal that killed it."""
    command = [sys.executable, "-m", "remat_compiler.fitting.paper_child", str(question), str(answer)]
    return subprocess.run(command, env=environment, check=False).returncode
