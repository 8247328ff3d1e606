"""torch's profiler: the allocations of a function, and whether a profile is being recorded already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from remat_compiler.torch_compat.patches import PROFILER_STARTS
from remat_compiler.torch_compat.patching import replace

_MARK = "remat::mark"


def memory_deltas(run: Callable[[], object], device_type: str = "cpu") -> tuple[list[int], object]:
    """Bytes that `run` takes from (positive) and gives back to (negative) the allocator of a CPU or of CUDA devices (in
    whole blocks), and its result.  The allocator's statistics are left alone.

    By the older of torch's two profilers: it starts in 0.1 ms, while the newer one takes a second the first time
    and prints to the terminal. The result is held until the record ends, so that it counts as taken.

    Raises:
        RuntimeError: A profiler runs already, or `run` raised it.
    """
    events, result = _recorded(run)
    return _deltas(events, device_type), result


def deltas_beside_marks(run: Callable[[], object]) -> tuple[list[int], list[int], object]:
    """As `memory_deltas` of a CPU, in front of the first `mark` and behind the last one; none without one.

    Memory that was there before `run` is not seen to be given back, unless an earlier record saw it taken.
    """
    events, result = _recorded(run)
    marks = [place for place, event in enumerate(events) if event.name() == _MARK] or [0, len(events)]
    return _deltas(events[: marks[0]], "cpu"), _deltas(events[marks[-1] :], "cpu"), result


def mark() -> None:
    """Mark this place in a record."""
    with torch.autograd.profiler.record_function(_MARK):
        pass


def begin_record() -> Callable[[str], list[int] | None]:
    """Begin a record as `memory_deltas` makes one; what is returned ends it, and gives the bytes of a device's type.

    They are `None` if it was ended meanwhile: the program has begun a profile, or a part of this compiler has asked for
    the profiler (`profiler_is_running`).

    Raises:
        RuntimeError: A profiler runs already.
    """
    record = _Record(gives_way=True)

    def end(device_type: str) -> list[int] | None:
        events = record.end()
        return None if record.gave_way else _deltas(events, device_type)

    return end


def _recorded(run: Callable[[], object]) -> tuple[list[Any], object]:
    """The events of a function in torch's older profiler, and its result."""
    record = _Record()
    try:
        result = run()
    finally:
        # After an error, too: a profiler that still ran would refuse the user's.
        events = record.end()
    return events, result


class _Record:
    """A record of this thread, by torch's older profiler.

    Args:
        gives_way: Whether other parts of this compiler may end it; the program's profiles always do.

    Attributes:
        gave_way: Whether it was ended for another one.
    """

    def __init__(self, *, gives_way: bool = False) -> None:
        _follow_profiles()
        # The flag that is set records memory; shapes, stacks, floating-point operations and modules are not needed.
        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        torch._C._autograd._enable_profiler_legacy(config)
        self.gives_way, self.gave_way = gives_way, False
        self._events: list[Any] = []
        _running.record = self

    def end(self) -> list[Any]:
        """End it, unless it has ended; its events."""
        if _running.record is self:
            _running.record = None
            threads = torch._C._autograd._disable_profiler_legacy()
            self._events = [event for thread in threads for event in thread]
        return self._events

    def give_way(self) -> None:
        """End it for another one."""
        self.gave_way = True
        self.end()


class _Running(threading.local):
    record: _Record | None = None


_running = _Running()


@cache
def _follow_profiles() -> None:
    """Have records end where the program begins a profile, which torch would refuse beside them."""

    def giving_way(original: Callable[[], None]) -> Callable[[], None]:
        def begins() -> None:
            if _running.record is not None:
                _running.record.give_way()
            original()

        return begins

    replace(PROFILER_STARTS, giving_way)


def _deltas(events: Iterable[Any], device_type: str) -> list[int]:
    on_gpu, memory = device_type == "cuda", [event for event in events if str(event.kind()) == "memory_alloc"]
    deltas = [event.cuda_memory_usage() if on_gpu else event.cpu_memory_usage() for event in memory]
    # Each event is of one device, and has 0 for the other.
    return [delta for delta in deltas if delta]


def peak_beyond(deltas: Iterable[int]) -> int:
    """The highest sum of the first `deltas` less the sum of all: what was taken at once, and is given back."""
    live = peak = 0
    for delta in deltas:
        live += delta
        peak = max(peak, live)
    # The results are still held, so they are part of both sums.
    return max(0, peak - live)


def profiler_is_running() -> bool:
    """Whether a profile is being recorded (a second one would raise); a record that gives way is ended."""
    if _running.record is not None and _running.record.gives_way:
        _running.record.give_way()
    return bool(torch._C._autograd._profiler_enabled())
