"""Time calls on a device: by a clock of the CPU, or by events in the stream on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from remat_compiler import torch_compat

_QUEUED = 10
"""Calls between two events, if one of them is short."""
_SHORT_NS = 100_000

DEVICE_TYPES = ("cpu", "cuda")
"""Devices that can be timed, and whose allocator tells of its work."""

Clock = Callable[[], int]
"""Nanoseconds from some moment on."""


def thread_clock() -> Clock:
    """The clock of this thread, which stands still while another program has its core.

    It fits calls that compute in this thread, whatever other threads do meanwhile, and misses what a call waits for.
    Where the system counts it coarsely (Windows: in ticks of 15 ms), it is the process's clock, which runs on.
    """
    fine = hasattr(time, "thread_time_ns") and time.get_clock_info("thread_time").resolution <= 1e-6
    return time.thread_time_ns if fine else time.perf_counter_ns


def best_ns(
    run: Callable[[], object], device_type: str, *, most: int, seconds: float, clock: Clock = time.perf_counter_ns
) -> int:
    """Shortest time of one call, in nanoseconds: its time while nothing else uses the device.

    The mean and the median of a few calls follow the load of the machine, by a factor of two on a shared one;
    the minimum hardly does, and repeats.

    Args:
        run: The call to time; it is made once or more often.
        device_type: One of `DEVICE_TYPES`.
        most: Calls at most.
        seconds: After so much time no further call begins.
        clock: What counts the time of calls on a CPU.
    """
    # Of a short call the first sample may be the time that it takes to start it.
    samples = [elapsed_ns(run, device_type, clock)]
    calls = _QUEUED if device_type == "cuda" and samples[0] < _SHORT_NS else 1
    while len(samples) < most and sum(samples) < seconds * 1e9:
        samples.append(elapsed_ns(run, device_type, clock, calls))
    return min(samples)


def best_computing_ns(run: Callable[[], object], device_type: str, *, most: int, seconds: float) -> int:
    """`best_ns` of a call that computes in this thread: by the thread's clock, where that is fine enough."""
    return best_ns(run, device_type, most=most, seconds=seconds, clock=thread_clock())


def elapsed_ns(run: Callable[[], object], device_type: str, clock: Clock = time.perf_counter_ns, calls: int = 1) -> int:
    """Nanoseconds that one call takes, at least 1; its result is freed within them.

    Args:
        run: The call.
        device_type: One of `DEVICE_TYPES`.
        clock: What counts the time on a CPU.
        calls: How often it is made on a GPU, one after the other; their mean is returned.
    """
    if device_type != "cuda":
        start_ns = clock()
        run()
        # Rates divide by it, so it is never 0.
        return max(1, clock() - start_ns)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    # To start a kernel takes longer than many kernels do: the device waits until all are in its queue.
    torch_compat.keep_device_busy()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    # Kernels run asynchronously: the events' times are known when the second one has passed.
    end.synchronize()
    return max(1, round(float(start.elapsed_time(end)) * 1e6 / calls))  # milliseconds to nanoseconds
