"""Copies by threads: in pieces, in order, and never under memory that was given up."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from remat_compiler.compilation.offloading import place_of
from remat_compiler.errors import OffloadError, OptionError
from remat_compiler.ir.plan import Tier
from remat_compiler.offload import copies
from remat_compiler.offload.copies import PIECE_BYTES, ThreadCopy, copy_back, copy_out, flat_bytes
from remat_compiler.offload.direct_file import GpuFile
from remat_compiler.offload.memory import HostMemory
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Slot
from remat_compiler.options import RematOptions

SIZE = 3 * PIECE_BYTES + 17


def slot_of(memory: Any) -> Slot:
    return Slot(memory, 4096, SIZE)


def test_a_copy_is_made_of_pieces_at_their_places() -> None:
    memory = HostMemory(SIZE + 8192, pinned=False)
    value, found = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    ThreadCopy(slot_of(memory), value, back=False).wait()
    assert (memory.bytes[4096 : 4096 + SIZE] == value).all()
    ThreadCopy(slot_of(memory), found, back=True).wait()
    assert (found == value).all()


class Slow(HostMemory):
    """Takes bytes once an event has come."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes, pinned=False)
        self.gate = threading.Event()

    def write(self, offset: int, source: Any) -> None:
        assert self.gate.wait(20)
        super().write(offset, source)


def test_a_copy_back_begins_once_the_value_is_out() -> None:
    memory, value, target = Slow(8192), torch.arange(8.0), torch.zeros(8)
    slot = Slot(memory, 4096, 32)
    out = copy_out(flat_bytes(value), slot)
    threading.Timer(0.1, memory.gate.set).start()
    copy_back(slot, target, out).wait()
    assert target.equal(value)


class FailsOnce(HostMemory):
    """The first piece fails at once; the others wait for an event."""

    waits = True

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes, pinned=False)
        self.gate, self.ended = threading.Event(), 0

    def write(self, offset: int, source: Any) -> None:
        if offset == 4096:
            raise OffloadError("the first piece failed")
        assert self.gate.wait(20)
        super().write(offset, source)
        self.ended += 1


def test_a_copy_that_fails_is_over_before_the_memory_is_given_up() -> None:
    memory = FailsOnce(SIZE + 8192)
    copy = ThreadCopy(slot_of(memory), np.ones(SIZE, np.uint8), back=False)
    threading.Timer(0.2, memory.gate.set).start()
    with pytest.raises(OffloadError, match="the first piece failed"):
        copy.wait()
    assert memory.ended == 3
    copy.wait()  # waited for already


def test_a_copy_begins_when_the_device_is_ready() -> None:
    memory, ready = HostMemory(SIZE + 8192, pinned=False), threading.Event()
    value = np.zeros(SIZE, np.uint8)

    def computed() -> None:
        assert ready.wait(20)

    copy = ThreadCopy(slot_of(memory), value, back=False, ready=computed)
    value[:] = 7
    ready.set()
    copy.wait()
    assert (memory.bytes[4096 : 4096 + SIZE] == 7).all()


def test_places_are_read_as_they_are_written(tmp_path: Path) -> None:
    for place in (Place.of(Tier.HOST), Place.of(Tier.DISK, tmp_path), Place.of(Tier.DISK, tmp_path / "a:b", True)):
        assert Place.parse(str(place)) == place
    assert Place.of(Tier.HOST, tmp_path, direct=True) == Place(Tier.HOST)


class _Future:
    def __init__(self, done: int) -> None:
        self._done = done

    def get(self) -> int:
        return self._done


class CuFile:
    """What this project uses of kvikio's class of that name, on host memory."""

    def __init__(self, path: str, flags: str) -> None:
        assert flags == "w+"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def fileno(self) -> int:
        return self._descriptor

    def pwrite(self, array: Any, size: int, file_offset: int) -> _Future:
        return _Future(os.pwrite(self._descriptor, array[:size].data, file_offset))

    def pread(self, array: Any, size: int, file_offset: int) -> _Future:
        return _Future(os.preadv(self._descriptor, [array[:size].data], file_offset))

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the library, which works with the CUDA driver alone."""
    module = ModuleType("kvikio")
    module.CuFile = CuFile  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("kvikio", None)
    monkeypatch.setitem(sys.modules, "kvikio", module)
    return module


def test_a_file_of_a_gpu_has_room_and_no_name(kvikio: ModuleType, tmp_path: Path) -> None:
    memory = GpuFile(SIZE + 8192, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(memory._file.fileno()).st_blocks * 512 >= SIZE
    value, found = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    ThreadCopy(slot_of(memory), value, back=False).wait()
    ThreadCopy(slot_of(memory), found, back=True).wait()
    assert (found == value).all()
    with pytest.raises(OffloadError, match=r"ended after 0 B of 4.0 KiB"):
        memory.read(1 << 40, np.zeros(4096, np.uint8))
    memory.close()


def test_a_file_of_a_gpu_that_cannot_be_made_says_why(
    kvikio: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OffloadError, match=r"offload_dir .*nowhere.* cannot be written"):
        GpuFile(4096, tmp_path / "nowhere")

    def broken(path: str, flags: str) -> None:
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(kvikio, "CuFile", broken)
    with pytest.raises(OffloadError, match=r"kvikio, .* cannot be used \(libcuda"):
        GpuFile(4096, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_from_a_gpu_needs_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    options = RematOptions(offload_budget=1 << 20, offload_tier="disk", offload_dir=tmp_path)
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(OptionError, match=r'needs kvikio, which is not installed: pip install "remat-compiler\[disk-'):
        place_of(options, ["cuda"])
    assert place_of(options, ["cpu"]) == Place(Tier.DISK, tmp_path)
    request.getfixturevalue("kvikio")
    assert place_of(options, ["cuda"]) == Place(Tier.DISK, tmp_path)


class MadeUpStream:
    """A stream of a GPU that notes what it is given, and what is waited for."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.given = told, 0

    def wait_stream(self, _: object) -> None:
        """It is empty."""

    def wait_event(self, _: object) -> None:
        """It has come."""

    def record_event(self) -> Any:
        self.given += 1
        text = f"copy {self.given} has ended"
        return SimpleNamespace(synchronize=lambda: self.told.append(text))


def test_memory_that_the_driver_does_not_pin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = []
    driver = SimpleNamespace(cudaHostRegister=lambda *_: 2, cudaHostUnregister=given_back.append)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    with pytest.raises(OffloadError, match=r"8\.0 KiB of host memory cannot be pinned \(2\)"):
        HostMemory(8192, pinned=True)
    gc.collect()
    assert not given_back


def test_pinned_memory_is_kept_until_the_last_copy_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    stream = MadeUpStream(told)
    driver = SimpleNamespace(
        cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: told.append("the memory is given back")
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: MadeUpStream(told))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(copies, "_stream", lambda *_: stream)
    memory = HostMemory(8192, pinned=True)
    value = torch.arange(64, dtype=torch.uint8)
    # Held, since a copy that nobody waits for tells the allocator of its stream.
    out = copies.StreamCopy(Slot(memory, 0, 64), lambda pinned: _fill(pinned, value), value, back=False)
    found = torch.zeros_like(value)
    back = copies.StreamCopy(Slot(memory, 0, 64), lambda pinned: _fill(found, pinned), found, back=True, after=out)
    out.wait()
    back.wait()
    assert found.equal(value)
    memory.close()
    assert told == ["copy 2 has ended", "the memory is given back"]


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)
