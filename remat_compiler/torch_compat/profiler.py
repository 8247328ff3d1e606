"""torch's profiler: the allocations of a function, and whether a profile is being recorded already."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig


def memory_deltas(run: Callable[[], object], device_type: str = "cpu") -> tuple[list[int], object]:
    """Bytes that `run` takes from (positive) and gives back to (negative) the allocator of a CPU or of CUDA devices (in
    whole blocks), and its result.  The allocator's statistics are left alone.

    By the older of torch's two profilers: it starts in 0.1 ms, while the newer one takes a second the first time
    and prints to the terminal. The result is held until the record ends, so that it counts as taken.

    Raises:
        RuntimeError: A profiler runs already, or `run` raised it.
    """
    # The flag that is set records memory; shapes, stacks, floating-point operations and modules are not needed.
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        result = run()
    finally:
        # After an error, too: a profiler that still ran would refuse the user's.
        records = torch._C._autograd._disable_profiler_legacy()
    events = [event for thread in records for event in thread if str(event.kind()) == "memory_alloc"]
    on_gpu = device_type == "cuda"
    deltas = [event.cuda_memory_usage() if on_gpu else event.cpu_memory_usage() for event in events]
    # Each event is of one device, and has 0 for the other.
    return [delta for delta in deltas if delta], result


def peak_beyond(deltas: Iterable[int]) -> int:
    """The highest sum of the first `deltas` less the sum of all: what was taken at once, and is given back."""
    live = peak = 0
    for delta in deltas:
        live += delta
        peak = max(peak, live)
    # The results are still held, so they are part of both sums.
    return max(0, peak - live)


def profiler_is_running() -> bool:
    """Whether a profile is being recorded (a second one would raise)."""
    return bool(torch._C._autograd._profiler_enabled())
