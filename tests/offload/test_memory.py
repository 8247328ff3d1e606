"""Memory off the device: what is written is read again, from a real file, and nothing is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from remat_compiler.errors import OffloadError
from remat_compiler.ir.plan import in_pages
from remat_compiler.offload.direct_file import DirectFile
from remat_compiler.offload.memory import DiskMemory, HostMemory, Memory

MEMORIES: dict[str, Callable[[int, Path], Memory]] = {
    "host": lambda size_bytes, _: HostMemory(size_bytes, pinned=False),
    "disk": DiskMemory,
    "direct": DirectFile,
}


@pytest.mark.parametrize("kind", MEMORIES)
def test_what_is_written_is_read_again(kind: str, tmp_path: Path) -> None:
    memory = MEMORIES[kind](20_000, tmp_path)
    rng = np.random.default_rng(0)
    pieces = {offset: rng.integers(0, 256, size, np.uint8) for offset, size in ((0, 5000), (8192, 1), (12288, 7712))}
    for offset, piece in pieces.items():
        memory.write(offset, piece)
    for offset, piece in pieces.items():
        found = np.zeros_like(piece)
        memory.read(offset, found)
        assert (found == piece).all()
    memory.close()


@pytest.mark.parametrize("kind", ["disk", "direct"])
def test_bytes_reach_a_file_of_that_folder_that_has_no_name(kind: str, tmp_path: Path) -> None:
    memory = MEMORIES[kind](1 << 20, tmp_path)
    piece = np.arange(256, dtype=np.uint8)
    memory.write(4096, piece)
    (descriptor,) = [
        int(name) for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path.resolve()))
    ]
    # Read as the system's cache has it, whichever way it was written.
    reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    assert os.pread(reader, 256, 4096) == piece.tobytes()
    os.close(reader)
    # All of it is reserved, not only what was written.
    assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
    assert list(tmp_path.iterdir()) == []
    memory.close()


def _target(name: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{name}").readlink())
    except OSError:
        return ""


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OffloadError, match=r"offload_dir .*nowhere.* cannot be written"):
        DiskMemory(4096, tmp_path / "nowhere")


def test_a_disk_without_room_is_an_error_at_once(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OffloadError, match=r"has no 1.0 MiB left .*lower offload_budget"):
            DiskMemory(1 << 20, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fails_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    memory = DiskMemory(4096, tmp_path)
    with pytest.raises(OffloadError, match="the file ends early"):
        memory.read(0, np.zeros(8192, np.uint8))
    memory.close()


def test_direct_copies_of_any_size_touch_no_page_of_others(tmp_path: Path) -> None:
    memory, sizes = DirectFile(32 << 20, tmp_path), (1, 4095, 4096, 4097, (4 << 20) + 1, (9 << 20) - 5)
    pieces, offset = {}, 0
    for number, size in enumerate(sizes):
        pieces[offset] = np.full(size, number + 1, np.uint8)
        offset += in_pages(size)
    for at in reversed(pieces):
        memory.write(at, pieces[at])
    for at, piece in pieces.items():
        # One byte beyond a boundary, as values in the middle of a storage begin.
        found = np.zeros(len(piece) + 1, np.uint8)[1:]
        memory.read(at, found)
        assert (found == piece).all()
    memory.close()


def test_a_file_system_without_direct_copies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OffloadError, match=r"has no direct I/O .*leave out offload_direct"):
        DirectFile(4096, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(OffloadError, match=r"has no direct I/O .*Invalid argument"):
        DirectFile(4096, tmp_path)
    assert not [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path.resolve()))]


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys; from pathlib import Path; from remat_compiler.offload.memory import DiskMemory\n"
        "memory = DiskMemory(1 << 20, Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
