"""Who looks on while graphs are compiled and steps are run: tests, benchmarks and tools.

    with observed_by(Watcher()):
        ...

An observer is told of objects as they are made and must not change them.  It is called by the thread that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Observer:
    """Told of what is made; each method does nothing unless it is overridden."""

    def attempt_begins(self, request: Any) -> None:
        """A graph is compiled by a `PartitionRequest`."""

    def attempt_ends(self, attempt: Any) -> None:
        """A graph was compiled and checked: the `Attempt`."""

    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        """A joint graph was cut.

        Args:
            partition: The `Partition`.
            request: The `PartitionRequest`.
            convention: `num_fwd_outputs` and `static_input_indices` of the joint graph.
        """

    def dispatch_made(self, dispatch: Any) -> None:
        """A graph of changing sizes has its `Dispatch`."""

    def collector_made(self, attempt: Any, collector: Any) -> None:
        """A graph's first calls will be collected from: the `Attempt` that was compiled first, and the `Collector`."""

    def step_completes(self, step: Any) -> None:
        """The graphs of a `Step` are about to be decided about."""

    def step_decided(self, step: Any) -> None:
        """The graphs of a `Step` are decided about."""


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell `observer` of all that the process makes within the block."""
    global _observers
    before = _observers
    _observers = (*before, observer)
    try:
        yield
    finally:
        _observers = before


def observers() -> tuple[Observer, ...]:
    """Who is to be told now."""
    return _observers


_observers: tuple[Observer, ...] = ()
