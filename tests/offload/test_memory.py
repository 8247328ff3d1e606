"""Memory off the device: what is written is read again, from a real file, and nothing is left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from remat_compiler.errors import OffloadError
from remat_compiler.offload.memory import DiskMemory, HostMemory, Memory


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_what_is_written_is_read_again(kind: str, tmp_path: Path) -> None:
    memory: Memory = HostMemory(20_000, pinned=False) if kind == "host" else DiskMemory(20_000, tmp_path)
    rng = np.random.default_rng(0)
    pieces = {offset: rng.integers(0, 256, size, np.uint8) for offset, size in ((0, 5000), (8192, 1), (12288, 7712))}
    for offset, piece in pieces.items():
        memory.write(offset, piece)
    for offset, piece in pieces.items():
        found = np.zeros_like(piece)
        memory.read(offset, found)
        assert (found == piece).all()
    memory.close()


def test_bytes_reach_a_file_of_that_folder_that_has_no_name(tmp_path: Path) -> None:
    memory = DiskMemory(1 << 20, tmp_path)
    piece = np.arange(256, dtype=np.uint8)
    memory.write(4096, piece)
    (descriptor,) = [
        int(name) for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path.resolve()))
    ]
    assert os.pread(descriptor, 256, 4096) == piece.tobytes()
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


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys; from pathlib import Path; from remat_compiler.offload.memory import DiskMemory\n"
        "memory = DiskMemory(1 << 20, Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
