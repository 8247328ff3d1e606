"""Counts of the compilations in this process: plans requested, found in the cache and made, and seconds by part.

To add a counter, add a field to `Stats` and call `count` with its name; to time something, add a field whose name ends
in ``_s`` and put `timed` around it.  Both are safe in any thread.

Every second belongs to one part: the time of an inner `timed` block does not count for the outer one.

    compiling ──────┬─────────────────┬────── compiling_s: what is left outside of the two below
                    planning          verifying
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from remat_compiler.ir.text_form import table

SECONDS = "_s"
"""Suffix of the names of times."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and seconds since the process began, or since `reset_stats`.

    Attributes:
        compilations: Compilations by the inner compiler, trial compilations included.
        solves: Problems that a planner solved.
        exact_hits: Problems whose plan was in the cache.
        similar_hits: Problems that took the plan of another size from the cache.
        misses: Problems for which the cache had no usable plan.
        variants: Variants compiled for graphs whose sizes change, the first of each graph included.
        decisions: New sizes for which a variant was chosen without a compilation.
        collections: Sizes at which the layers of a graph were measured.
        collections_dropped: Measurements of layers, of all or of one, that were discarded or left out.
        planning_s: Seconds in planners.
        lookup_s: Seconds in reading plans from the cache and writing them to it.
        verifying_s: Seconds in the verifier.
        compiling_s: Seconds in capture, rewriting and the inner compiler.
        dry_run_s: Seconds in checking the peak of emitted code.
        deciding_s: Seconds in choosing variants.
        collecting_s: Seconds in measuring layers.
    """

    compilations: int = 0
    solves: int = 0
    exact_hits: int = 0
    similar_hits: int = 0
    misses: int = 0
    variants: int = 0
    decisions: int = 0
    collections: int = 0
    collections_dropped: int = 0
    planning_s: float = 0.0
    lookup_s: float = 0.0
    verifying_s: float = 0.0
    compiling_s: float = 0.0
    dry_run_s: float = 0.0
    deciding_s: float = 0.0
    collecting_s: float = 0.0

    def __str__(self) -> str:
        rows = []
        for field in fields(self):
            value, timed_ = getattr(self, field.name), field.name.endswith(SECONDS)
            words = field.name.removesuffix(SECONDS).replace("_", " ")
            rows.append((words, f"{value:.3f} s" if timed_ else str(value)))
        return "\n".join(table(rows, right=(1,)))


class _Open(threading.local):
    """For each timed block that is open in this thread, the seconds of the timed blocks within it; innermost last."""

    def __init__(self) -> None:
        self.within: list[float] = []


_lock = threading.Lock()
_total = Stats()
_open = _Open()


def stats() -> Stats:
    """The figures so far."""
    with _lock:
        return _total


def reset_stats() -> None:
    """Set all figures to 0; blocks that are being timed still add their seconds when they end."""
    global _total
    with _lock:
        _total = Stats()


def count(name: str, by: float = 1) -> None:
    """Add `by` to the field `name` of `Stats`; AttributeError when there is none."""
    global _total
    with _lock:
        # A new object, so that what `stats` returned stays as it was.
        _total = replace(_total, **{name: getattr(_total, name) + by})


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the seconds of the block, less those timed within it, to the field `name` of `Stats`."""
    start = time.perf_counter()
    _open.within.append(0.0)
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        count(name, seconds - _open.within.pop())
        # All of it belongs to this block and those within it: none of it to the block around.
        if _open.within:
            _open.within[-1] += seconds
