"""Copies by streams of a GPU: they wait for what makes a value, and nothing takes memory that they still use."""

from __future__ import annotations

import gc

import pytest
import torch

from remat_compiler.offload.copies import Copy, copy_back, copy_out, flat_bytes
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Slot, Store, store_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CYCLES = 50_000_000
"""What the device sleeps: some ten milliseconds, longer than a copy takes."""
SIZE = 4 << 20


def host() -> Store:
    """The pinned memory of this process."""
    return store_of(Place.parse("host"), pinned=True)


def made_late(number: float) -> torch.Tensor:
    """A value that its kernel only makes after a while."""
    value = torch.zeros(SIZE, device="cuda")
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    return value.add_(number)


def moved_out(value: torch.Tensor) -> tuple[Slot, Copy]:
    """Where the value is off the device, and the copy that is under way."""
    slot = host().take(value.nbytes)
    return slot, copy_out(flat_bytes(value), slot)


def moved_back(slot: Slot, out: Copy) -> torch.Tensor:
    """The value on the device again."""
    target = torch.empty(SIZE, device="cuda")
    copy_back(slot, target, out).wait()
    return target


def test_a_copy_out_waits_for_the_value() -> None:
    value = made_late(3.0)
    slot, out = moved_out(value)
    out.wait()
    # Whoever has the memory next does so behind the copy.
    value.fill_(-1.0)
    assert bool((moved_back(slot, out) == 3.0).all())


def test_a_copy_back_waits_for_who_used_the_memory_before() -> None:
    slot, out = moved_out(torch.full((SIZE,), 5.0, device="cuda"))
    out.wait()
    target = torch.empty(SIZE, device="cuda")
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    target.fill_(-1.0)
    copy_back(slot, target, out).wait()
    assert bool((target == 5.0).all())


def test_memory_of_a_copy_that_nobody_waits_for_is_not_given_away() -> None:
    value = made_late(7.0)
    slot, out = moved_out(value)
    address = value.data_ptr()
    del value
    # The copy alone holds it, and lets go of it here, as in a step that breaks off.
    again = moved_back(slot, out)
    del out
    gc.collect()
    other = torch.full((SIZE,), -1.0, device="cuda")
    assert bool((again == 7.0).all())
    assert other.data_ptr() != address or bool((other == -1.0).all())


def test_a_slot_serves_the_next_step_behind_the_copies_of_this_one() -> None:
    for step in range(4):
        slot, out = moved_out(made_late(float(step)))
        again = moved_back(slot, out)
        assert bool((again == float(step)).all())
        del slot, out
    assert host().taken_bytes == 0
