"""Fixtures by which steps on paper run in processes that are forked from one that has imported torch, see `forked`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from forked import end, fork_server, take
from remat_compiler.fitting import paper_process

NEW_INTERPRETER = paper_process.exit_code
READ_LATER = ("CUDA_VISIBLE_DEVICES", "PYTEST_CURRENT_TEST", "REMAT_", "TESTS_")
"""Beginnings of the variables that no import reads."""


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Fork in place of starting an interpreter, unless an import could depend on a variable that a test has set."""
    context = fork_server()
    if context is None:
        yield
        return
    started_with = read_by_imports(os.environ)

    def exit_code(question: Path, answer: Path, environment: dict[str, str]) -> int:
        # A process that may use a GPU, or is to see none, cannot be forked from one that has looked for it.
        if torch.cuda.is_available() or read_by_imports(environment) != started_with:
            return NEW_INTERPRETER(question, answer, environment)
        process = context.Process(target=answer_in, args=(environment, str(question), str(answer)))
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_process, "exit_code", exit_code)
        yield


@pytest.fixture
def new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started as it is for users."""
    monkeypatch.setattr(paper_process, "exit_code", NEW_INTERPRETER)


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that could change what an import does."""
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}


def answer_in(environment: dict[str, str], question: str, answer: str) -> None:
    """What the forked process does: the work of `paper_child` under that environment."""
    from remat_compiler.fitting.paper_child import main

    take(environment)
    main(question, answer)
    end()
