"""What compilation did in this process, counted: plans asked for, found again and made, and seconds of each part.

To add a counter, add a field to `Stats` and call `count` with its name; to time something, add a field whose name ends
in ``_s`` and put `timed` around it.  Both are safe in any thread.

A second belongs to one part alone: what is timed within something else that is timed does not count there.

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
"""How the names of times end."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and seconds since the process began, or since `reset_stats`.

    Attributes:
        compilations: Times that a graph was given to the inner compiler, trial compilations included.
        solves: Problems that a planner solved.
        exact_hits: Problems whose plan was in the cache.
        similar_hits: Problems that took the plan of another size from the cache.
        misses: Problems for which the cache had no plan to take.
        variants: Variants compiled for graphs whose sizes change, the first of each included.
        decisions: Sizes never seen before for which a variant was chosen without a compilation.
        collections: Sizes at which the layers of a graph were measured.
        collections_dropped: Such measurements, of all layers or one, that were thrown away or left out.
        planning_s: Seconds in planners.
        lookup_s: Seconds in looking for plans in the cache, and in keeping them.
        verifying_s: Seconds in the verifier.
        compiling_s: Seconds in capture, rewriting and the inner compiler.
        dry_run_s: Seconds in checking the peak of what was emitted.
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
    """Seconds of what was timed within each timed block that is open in this thread, innermost last."""

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
    """Begin anew at 0; blocks that are being timed add their seconds when they end."""
    global _total
    with _lock:
        _total = Stats()


def count(name: str, by: float = 1) -> None:
    """Add `by` to the field `name` of `Stats`; AttributeError when there is none."""
    global _total
    with _lock:
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
        if _open.within:
            _open.within[-1] += seconds
