"""The operators that move values: bits come back, whatever happens meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.errors import OffloadError
from remat_compiler.ir.plan import Tier
from remat_compiler.offload.memory import ByteArray, HostMemory
from remat_compiler.offload.operators import FETCH, OFFLOAD, OFFLOADED, PREFETCH, handles_in
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Store, store_of
from remat_compiler.torch_compat import memory_order


class SlowMemory(HostMemory):
    """Host memory whose copies wait until they are let go."""

    def __init__(self, size_bytes: int, gate: threading.Event) -> None:
        super().__init__(size_bytes, pinned=False)
        self.gate = gate

    def write(self, offset: int, source: ByteArray) -> None:
        assert self.gate.wait(20)
        super().write(offset, source)

    def read(self, offset: int, target: ByteArray) -> None:
        assert self.gate.wait(20)
        super().read(offset, target)


@pytest.fixture(params=["host", "disk", "disk, direct"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that no other test uses, for disks."""
    tier, _, direct = request.param.partition(", ")
    return str(Place.of(Tier(tier), tmp_path, direct=bool(direct)))


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[str, threading.Event]]:
    """A place whose copies wait for an event."""
    gate, where = threading.Event(), Place(Tier.DISK, tmp_path)
    store_of(where, pinned=False).make = lambda size_bytes: SlowMemory(size_bytes, gate)
    yield str(where), gate
    gate.set()


def store_at(place: str) -> Store:
    return store_of(Place.parse(place), pinned=False)


def moved(value: Tensor, place: str) -> Tensor:
    """The handle of a value that is out."""
    handle = OFFLOAD(value, place)
    OFFLOADED(handle, value)
    return handle


def back(handle: Tensor, like: Tensor) -> Tensor:
    value, ticket = PREFETCH(handle, like.size(), memory_order(like), like.dtype, like.device)
    FETCH(value, ticket)
    return value


VALUES = {
    "float": torch.randn(30, 40),
    "bfloat16": torch.randn(7, 3).to(torch.bfloat16),
    "bool": torch.randn(100) > 0,
    "transposed": torch.randn(30, 40).t(),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "view without its base": torch.randn(30, 40)[7:11],
    "every other": torch.randn(30, 40)[:, ::2],
    "expanded": torch.randn(30, 1).expand(30, 40),
    "scalar": torch.tensor(3.5),
    "one": torch.randn(1, 1, 1),
    "nothing": torch.randn(0, 3),
    "large": torch.randn(1 << 18),
    "in several pieces": torch.randn((9 << 18) + 3),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_same_bits_come_back(name: str, place: str) -> None:
    value = VALUES[name]
    handle = moved(value, place)
    for _ in range(2):  # a graph that is retained reads it again
        found = back(handle, value)
        assert torch.equal(found, value)
        assert found.dtype == value.dtype
        assert found.data_ptr() != value.data_ptr() or not value.numel()


def test_room_is_given_back_with_the_last_holder_of_the_handle(place: str) -> None:
    value, room = torch.randn(3000), store_at(place)
    before = room.taken_bytes
    handle = moved(value, place)
    saved = handle.detach()
    del handle
    gc.collect()
    assert room.taken_bytes == before + 12288
    assert torch.equal(back(saved, value), value)
    del saved
    gc.collect()
    assert room.taken_bytes == before


def test_a_replaced_handle_is_an_error_and_never_another_value(place: str) -> None:
    value = torch.randn(5)
    handle = moved(value, place)
    copied = handle.clone()
    assert torch.equal(back(copied, value), value)  # as long as the value is there, its number finds it
    del handle
    gc.collect()
    other = moved(torch.randn(5), place)
    with pytest.raises(OffloadError, match="saved_tensors_hooks"):
        back(copied, value)
    del other


def test_a_value_that_is_freed_early_is_copied_all_the_same(slow: tuple[str, threading.Event]) -> None:
    place, gate = slow
    value = torch.randn(1 << 16)
    kept = value.clone()
    handle = OFFLOAD(value, place)
    address = value.data_ptr()
    # Nobody waits, as in a step that breaks off; the next tensors would get the memory.
    del value
    others = [torch.zeros(1 << 16) for _ in range(4)]
    assert address not in [one.data_ptr() for one in others]
    gate.set()
    assert torch.equal(back(handle, kept), kept)


def test_memory_is_free_when_the_wait_is_over(slow: tuple[str, threading.Event]) -> None:
    place, gate = slow
    gate.set()
    for _ in range(50):
        value = torch.randn(1 << 16)
        handle = OFFLOAD(value, place)
        OFFLOADED(handle, value)
        storage = value.untyped_storage()
        weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
        del value, storage
        assert weak.expired()
        del handle


def test_values_at_one_address_are_told_apart(place: str) -> None:
    handles, values = [], []
    for number in range(20):
        value = torch.full((1000,), float(number))
        values.append(value.clone())
        handles.append(moved(value, place))
        del value
    for handle, value in zip(handles[::-1], values[::-1]):
        assert torch.equal(back(handle, value), value)


def on_its_way_back(value: Tensor, slow: tuple[str, threading.Event]) -> tuple[Tensor, Tensor]:
    """Target and ticket of a copy back that waits for the event."""
    place, gate = slow
    gate.set()
    handle = moved(value, place)
    gate.clear()
    target, ticket = PREFETCH(handle, value.size(), memory_order(value), value.dtype, value.device)
    return target, ticket


def test_what_comes_back_never_lies_over_a_live_tensor(slow: tuple[str, threading.Event]) -> None:
    value = torch.randn(1 << 16)
    target, ticket = on_its_way_back(value, slow)
    # Under way while the step goes on and allocates.
    others = [torch.full((1 << 16,), float(i)) for i in range(4)]
    slow[1].set()
    FETCH(target, ticket)
    assert torch.equal(target, value)
    assert all((one == i).all() for i, one in enumerate(others))


def test_a_target_that_is_dropped_under_way_is_not_freed_under_the_copy(slow: tuple[str, threading.Event]) -> None:
    target, ticket = on_its_way_back(torch.randn(1 << 16), slow)
    address = target.data_ptr()
    del target, ticket
    others = [torch.zeros(1 << 16) for _ in range(4)]
    assert address not in [one.data_ptr() for one in others]
    slow[1].set()
    assert not any(one.any() for one in others)


def test_a_failed_copy_is_an_error_where_it_is_waited_for(tmp_path: Path) -> None:
    class Broken(HostMemory):
        def read(self, offset: int, target: ByteArray) -> None:
            raise OffloadError("the disk is gone")

    where = Place(Tier.DISK, tmp_path)
    store_of(where, pinned=False).make = lambda size_bytes: Broken(size_bytes, pinned=False)
    value = torch.randn(10)
    handle = moved(value, str(where))
    with pytest.raises(OffloadError, match="the disk is gone"):
        back(handle, value)


def test_fake_runs_move_nothing_while_a_copy_is_under_way(slow: tuple[str, threading.Event]) -> None:
    place, gate = slow
    value = torch.randn(1000)
    handle = OFFLOAD(value, place)
    taken = store_at(place).taken_bytes
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.empty(6, 5).t())
        number = OFFLOAD(fake, place)
        assert handles_in(str(OFFLOAD), number) == (number,)
        OFFLOADED(number, fake)
        found = PREFETCH(number, fake.size(), memory_order(fake), fake.dtype, fake.device)
        assert handles_in(str(PREFETCH), found) == (found[1],)
        FETCH(*found)
        assert (found[0].shape, found[0].stride()) == (fake.shape, fake.stride())
    assert store_at(place).taken_bytes == taken
    gate.set()
    OFFLOADED(handle, value)
    assert torch.equal(back(handle, value), value)


def test_threads_move_values_at_the_same_time(place: str) -> None:
    wrong: list[int] = []

    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            value = torch.from_numpy(rng.standard_normal(int(rng.integers(1, 5000))))
            handle = OFFLOAD(value, place)
            OFFLOADED(handle, value)
            if not torch.equal(back(handle, value), value):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
