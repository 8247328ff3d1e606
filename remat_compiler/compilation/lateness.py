"""Ranks that wait for one that compiles: communication has a timeout, after which NCCL's watchdog ends the job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from remat_compiler import torch_compat
from remat_compiler.log import logger_of

logger = logger_of(__name__)

PART = 0.5
"""Part of the timeout from which on a compilation is warned of."""


@contextmanager
def told_if_late() -> Iterator[None]:
    """Warn if the block took so long that other ranks may soon have waited for too long."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds, limit_s = time.perf_counter() - start, torch_compat.default_timeout_s()
        if limit_s is not None and seconds > PART * limit_s:
            _warn(round(seconds), round(limit_s))


@cache
def _warn(seconds: int, limit_s: int) -> None:
    logger.warning(
        "compiling took %d s, and communication of the default group fails after %d s, for which ranks that were ready "
        "wait meanwhile: give init_process_group a longer timeout, or fill REMAT_CACHE_DIR before",
        seconds,
        limit_s,
    )
