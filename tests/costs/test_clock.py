"""The clocks that time calls."""

from __future__ import annotations

import time

import pytest
import torch

from remat_compiler import torch_compat
from remat_compiler.costs.clock import best_ns, elapsed_ns, thread_clock

ASLEEP_NS = 50_000_000


def test_a_thread_that_has_no_core_is_not_charged() -> None:
    def asleep() -> None:
        time.sleep(ASLEEP_NS / 1e9)

    if thread_clock() is time.perf_counter_ns:
        pytest.skip("this system counts the time of threads in coarse ticks")
    assert elapsed_ns(asleep, "cpu") >= ASLEEP_NS
    assert elapsed_ns(asleep, "cpu", thread_clock()) < ASLEEP_NS / 2


def test_a_coarse_clock_of_threads_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = time.get_clock_info("thread_time")
    coarse.resolution = 0.015
    monkeypatch.setattr(time, "get_clock_info", lambda name: coarse)
    assert thread_clock() is time.perf_counter_ns


def test_the_shortest_of_some_calls_counts() -> None:
    times = iter([0, 500, 1000, 1200, 2000, 2900])
    assert best_ns(lambda: None, "cpu", most=3, seconds=1.0, clock=lambda: next(times)) == 200


class MadeUpGpu:
    """A GPU with a queue: to start something takes the processor some time, and the device another time to do it."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns, self.now_ns, self.free_ns = start_ns, 0, 0

    def runs(self, takes_ns: int) -> None:
        self.now_ns += self.start_ns
        self.free_ns = max(self.free_ns, self.now_ns) + takes_ns

    def event(self, **_: object) -> MadeUpEvent:
        return MadeUpEvent(self)


class MadeUpEvent:
    """Where the queue of a made-up GPU is as it is recorded."""

    def __init__(self, gpu: MadeUpGpu) -> None:
        self.gpu, self.at_ns = gpu, 0

    def record(self) -> None:
        self.at_ns = max(self.gpu.free_ns, self.gpu.now_ns)

    def synchronize(self) -> None:
        self.gpu.now_ns = max(self.gpu.now_ns, self.at_ns)

    def elapsed_time(self, end: MadeUpEvent) -> float:
        return (end.at_ns - self.at_ns) / 1e6


@pytest.mark.parametrize("takes_ns", [2_000, 50_000, 3_000_000])
def test_a_kernel_is_timed_and_not_its_start(takes_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(start_ns=8_000)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.runs(cycles * 2 // 3), raising=False)
    assert best_ns(lambda: gpu.runs(takes_ns), "cuda", most=3, seconds=0.05) == takes_ns


def test_a_hundred_starts_fit_behind_a_busy_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(start_ns=5_000)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.runs(cycles // 2), raising=False)
    torch_compat.keep_device_busy()
    assert gpu.free_ns > 100 * gpu.start_ns
