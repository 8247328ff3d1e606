"""Questions to GPUs on paper, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from remat_compiler.devices.machine_memory import available_bytes
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.progress import progress

PROCESS_BYTES = 4 * 2**30
"""Memory that a process may take: torch, and the graphs of a model with some thousands of operators."""


def num_processes() -> int:
    """How many processes answer at a time: as many as there are cores, and memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    left = available_bytes()
    return cores if left is None else max(1, min(cores, left // PROCESS_BYTES))


def side_by_side(what: str, function: Callable[..., Any], questions: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What `function` answers to each question, in their order.

    Args:
        what: What is going on, for people who wait.
        function: Answers a question.
        questions: Its arguments, each time.

    Raises:
        RematError: As the function raised it at the first question that it cannot answer; see `call_in_process`.
    """
    with progress(what, len(questions)) as bar, ThreadPoolExecutor(num_processes()) as pool:

        def answered(question: tuple[Any, ...]) -> Any:
            found = call_in_process(function, *question)
            bar.advance()
            return found

        futures: list[Future[Any]] = [pool.submit(answered, question) for question in questions]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # Those that have not begun would only keep the user waiting for the error.
            for future in futures:
                future.cancel()
            raise


def dealt(items: Sequence[Any], hands: int) -> list[list[Any]]:
    """The items in turn to at most so many hands, none of them empty."""
    return [list(items[n::hands]) for n in range(min(hands, len(items)))]
