"""Counters: nothing is lost between threads, and a second counts once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, fields

import pytest

import remat_compiler
from remat_compiler.stats import Stats, count, reset_stats, stats, timed


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    reset_stats()
    yield
    reset_stats()


def test_threads_lose_nothing_and_a_snapshot_stays() -> None:
    before = stats()
    threads = [threading.Thread(target=lambda: [count("solves") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats() == Stats(solves=2000)
    assert before == Stats()
    assert remat_compiler.stats() == stats()
    remat_compiler.reset_stats()
    assert stats() == Stats()


def test_what_is_timed_within_does_not_count_outside() -> None:
    begin = time.perf_counter()
    with timed("compiling_s"):
        with timed("planning_s"):
            time.sleep(0.02)
            with timed("verifying_s"):
                time.sleep(0.03)
        time.sleep(0.01)
    whole = time.perf_counter() - begin
    found = stats()
    assert found.verifying_s >= 0.03
    assert found.planning_s >= 0.02
    assert found.compiling_s >= 0.01
    assert found.verifying_s + found.planning_s + found.compiling_s <= whole


def test_an_error_is_timed_too_and_leaves_no_block_open() -> None:
    with pytest.raises(ValueError), timed("planning_s"):
        raise ValueError
    with timed("compiling_s"):
        time.sleep(0.01)
    assert stats().compiling_s >= 0.01


def test_every_field_can_be_counted_and_is_shown() -> None:
    for position, field in enumerate(fields(Stats)):
        count(field.name, position + 1)
    assert list(asdict(stats()).values()) == [position + 1 for position in range(len(fields(Stats)))]
    text = str(stats()).splitlines()
    assert [line.split()[0] for line in text] == [f.name.split("_")[0] for f in fields(Stats)]
    assert "exact hits" in text[2]
    assert text[2].endswith("3")
    assert text[-1].endswith(f"{len(text)}.000 s")
    with pytest.raises(AttributeError):
        count("solvs")
