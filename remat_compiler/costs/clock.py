"""Time calls on a device: by the process clock on a CPU, by events in the stream on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

DEVICE_TYPES = ("cpu", "cuda")
"""Devices that can be timed."""


def best_ns(run: Callable[[], object], device_type: str, *, most: int, seconds: float) -> int:
    """Shortest time of one call, in nanoseconds: its time while nothing else uses the device.

    The mean and the median of a few calls follow the load of the machine, by a factor of two on a shared one;
    the minimum hardly does, and repeats.

    Args:
        run: The call to time; it is made once or more often.
        device_type: One of `DEVICE_TYPES`.
        most: Calls at most.
        seconds: After so much time no further call begins.
    """
    samples = [elapsed_ns(run, device_type)]
    while len(samples) < most and sum(samples) < seconds * 1e9:
        samples.append(elapsed_ns(run, device_type))
    return min(samples)


def elapsed_ns(run: Callable[[], object], device_type: str) -> int:
    """Nanoseconds that one call takes, at least 1; its result is freed within them."""
    if device_type != "cuda":
        start_ns = time.perf_counter_ns()
        run()
        # Rates divide by it, so it is never 0.
        return max(1, time.perf_counter_ns() - start_ns)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    # Kernels run asynchronously: the events' times are known when the second one has passed.
    end.synchronize()
    return max(1, round(float(start.elapsed_time(end)) * 1e6))  # milliseconds to nanoseconds
