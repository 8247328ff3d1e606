"""Processes that are forked from one that has imported torch: to import it takes seconds each."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import monotonic

import brief

IMPORTED = [
    "pytest",
    "remat_compiler.fitting.paper_child",
    "remat_compiler.fitting.paper_step",
    "remat_compiler.backend",
    "remat_passes.planning.auto",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
]


@cache
def fork_server() -> ForkServerContext | None:
    """Makes the processes; `None` where the platform does not fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def take(environment: Mapping[str, str]) -> None:
    """Let a forked process have this environment, in place of that in which the server was started."""
    os.environ.clear()
    os.environ.update(environment)
    brief.as_told()


def free_ports(count: int) -> list[int]:
    """Ports at which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def end() -> None:
    """What an interpreter does at its end, and a forked process does not: temporary folders would stay."""
    atexit._run_exitfuncs()


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_program(text: str, folder: Path, environment: Mapping[str, str], *arguments: str) -> Done:
    """Run a program to its end.

    Args:
        text: The program.
        folder: For the program and what it writes.
        environment: Its environment, but for what was read when torch was imported.
        arguments: Those of its command line.

    Raises:
        TimeoutError: It hangs, and is killed.
    """
    file = folder / "program.py"
    file.write_text(text, encoding="utf-8")
    (done,) = run_together([[str(file), *arguments]], folder, environment, 600)
    return done


def run_together(
    commands: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str], most_s: float
) -> list[Done]:
    """Run a process for each command, all at the same time, to their ends.

    Args:
        commands: A Python file and its arguments, each.
        folder: For what they write.
        environment: As for `run_program`.
        most_s: Seconds after which all are killed.

    Raises:
        TimeoutError: One has not ended by then.
    """
    context = fork_server() or multiprocessing.get_context("spawn")
    said = [[folder / f"{name}{i}" for name in ("stdout", "stderr")] for i in range(len(commands))]
    processes = [context.Process(target=_run, args=(one, environment, to)) for one, to in zip(commands, said)]
    until = monotonic() + most_s
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(until - monotonic(), 0.0))
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
    written = [[file.read_text(encoding="utf-8") if file.exists() else "" for file in to] for to in said]
    # Shown by pytest where a test fails.
    for _, errors in written:
        print(errors[-4000:])
    if hanging:
        raise TimeoutError(
            f"{len(hanging)} of {len(commands)} processes did not end within {most_s} s: {commands[0][0]}"
        )
    return [_done(process.exitcode, *texts) for process, texts in zip(processes, written)]


def _done(returncode: int | None, stdout: str, stderr: str) -> Done:
    assert returncode is not None, "the process was waited for"
    return Done(returncode, stdout, stderr)


def _run(command: Sequence[str], environment: Mapping[str, str], said: Sequence[Path]) -> None:
    """What a forked process does in place of an interpreter: the program that the command names.

    Args:
        command: The program's file and arguments.
        environment: As for `run_program`.
        said: Files for what is written to the standard output and to the standard error.
    """
    take(environment)
    for descriptor, path in enumerate(said, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")
    end()
    sys.stdout.flush()
