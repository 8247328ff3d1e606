"""What torch's older profiler says of a function: its memory, as a whole and beside the places that are marked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch

from remat_compiler.torch_compat.profiler import (
    begin_record,
    deltas_beside_marks,
    mark,
    memory_deltas,
    profiler_is_running,
)


def made(*sizes: int) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=torch.uint8) for size in sizes]


@pytest.fixture(autouse=True)
def without_garbage() -> Iterator[None]:
    """Garbage of earlier records, collected within another one, would be seen to go."""
    gc.unfreeze()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("marks", [1, 2])
def test_memory_in_front_of_the_first_mark_and_behind_the_last_one(marks: int) -> None:
    before = made(1_000)

    def run() -> str:
        held = made(200, 300)
        # What was there already is not seen to go.
        before.clear()
        for _ in range(marks):
            mark()
            made(5_000)
        del held
        made(700)
        mark() if marks == 2 else made(10)
        return "done"

    first, last, result = deltas_beside_marks(run)
    assert result == "done"
    assert first == [200, 300]
    # Without a third mark, what follows the last one counts, and what is given back there.
    assert max(accumulate(last), default=0) == (0 if marks == 2 else 5_000)
    assert sum(last) == (0 if marks == 2 else -500)


def test_a_record_ends_where_the_program_begins_a_profile() -> None:
    for ends_within in (True, False):
        end = begin_record()
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        profile.start()
        kept = made(4_096)
        if not ends_within:
            assert end("cpu") is None
        profile.stop()
        if ends_within:
            assert end("cpu") is None
        assert any("empty" in event.name for event in profile.events())
        assert not profiler_is_running()
        del kept
    end = begin_record()
    assert not profiler_is_running()
    assert end("cpu") is None
    end = begin_record()
    kept = made(4_096)
    assert end("cpu") == [one.nbytes for one in kept]


def test_without_a_mark_nothing_is_beside_it() -> None:
    assert deltas_beside_marks(lambda: None)[:2] == ([], [])
    kept: list[torch.Tensor] = []
    first, last, _ = deltas_beside_marks(lambda: kept.extend(made(64)))
    assert (first, last) == ([], [])
    assert memory_deltas(lambda: kept.extend(made(64)))[0] == [64]
    assert not profiler_is_running()
