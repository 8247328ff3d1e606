"""Time calls on a device: by the process clock on a CPU, by events in the stream on CUDA."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

DEVICE_TYPES = ("cpu", "cuda")
"""Devices that can be timed."""


def best_ns(run: Callable[[], object], device_type: str, *, most: int, seconds: float) -> int:
    """Shortest time of one call, in nanoseconds: what the device can do while nobody disturbs it."""
    return min(_samples_ns(run, device_type, most, seconds))


def median_ns(run: Callable[[], object], device_type: str, *, most: int, seconds: float) -> int:
    """Median time of one call after a first one that is not counted, in nanoseconds.

    Args:
        run: What to time; it is called at least twice.
        device_type: One of `DEVICE_TYPES`.
        most: Calls counted at most.
        seconds: After so much time no further call begins.
    """
    elapsed_ns(run, device_type)
    return int(statistics.median(_samples_ns(run, device_type, most, seconds)))


def elapsed_ns(run: Callable[[], object], device_type: str) -> int:
    """Nanoseconds that one call takes, at least 1; its result is freed within them."""
    if device_type != "cuda":
        start_ns = time.perf_counter_ns()
        run()
        return max(1, time.perf_counter_ns() - start_ns)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    end.synchronize()
    return max(1, round(float(start.elapsed_time(end)) * 1e6))


def _samples_ns(run: Callable[[], object], device_type: str, most: int, seconds: float) -> list[int]:
    samples = [elapsed_ns(run, device_type)]
    while len(samples) < most and sum(samples) < seconds * 1e9:
        samples.append(elapsed_ns(run, device_type))
    return samples
