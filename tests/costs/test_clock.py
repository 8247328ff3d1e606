"""The clocks that time calls."""

from __future__ import annotations

import time

import pytest

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
