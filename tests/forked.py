"""Processes that are forked from one that has imported torch: to import it takes seconds each."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext

IMPORTED = [
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


def end() -> None:
    """What an interpreter does at its end, and a forked process does not: temporary folders would stay."""
    atexit._run_exitfuncs()
