"""Space in a file whose copies pass by the system's cache of files: by direct I/O, or between a GPU and the disk.

Files that are cached take host memory, which the system gives back only as others need it, and their copies are as fast
as memory until the cache is full, then as slow as the disk.  Direct copies are as fast as the disk from the first step.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from remat_compiler.errors import OffloadError
from remat_compiler.ir.plan import PAGE_BYTES, in_pages
from remat_compiler.offload.memory import ByteArray, DiskMemory, disk_full, folder_not_writable
from remat_compiler.units import format_bytes

_WINDOW_BYTES = 4 * 2**20
"""What a thread hands to the disk at once."""


class DirectFile(DiskMemory):
    """As `DiskMemory`, with direct I/O (`O_DIRECT`).

    That takes whole pages at page boundaries, of the file and of memory.  Values begin anywhere, so each thread copies
    through a window of its own; slots are whole pages, so what a copy writes behind its value belongs to no other.

    Args:
        size_bytes: As `DiskMemory`.
        folder: As `DiskMemory`.

    Raises:
        OffloadError: As `DiskMemory`, or the folder's file system has no direct I/O.
    """

    waits = True

    def __init__(self, size_bytes: int, folder: Path) -> None:
        super().__init__(in_pages(size_bytes), folder)
        self._windows = threading.local()
        descriptor = self._file.fileno()
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
            # Some systems take the setting and refuse the first copy; the memory has nothing in it yet.
            if size_bytes:
                self.write(0, np.zeros(1, np.uint8))
        except (OSError, OffloadError) as error:
            self.close()
            raise OffloadError(
                f"the file system of offload_dir {str(folder)!r} has no direct I/O ({error}); name a folder on another "
                f"disk, or leave out offload_direct"
            ) from error

    def write(self, offset: int, source: ByteArray) -> None:
        """Copy all of `source` to `offset`, a multiple of a page; the rest of the last page is undefined then."""
        window = self._window()
        for start in range(0, len(source), _WINDOW_BYTES):
            piece = source[start : start + _WINDOW_BYTES]
            window[: len(piece)] = piece
            super().write(offset + start, window[: in_pages(len(piece))])

    def read(self, offset: int, target: ByteArray) -> None:
        """Fill `target` from `offset`, a multiple of a page."""
        window = self._window()
        for start in range(0, len(target), _WINDOW_BYTES):
            piece = target[start : start + _WINDOW_BYTES]
            super().read(offset + start, window[: in_pages(len(piece))])
            piece[:] = window[: len(piece)]

    def _window(self) -> ByteArray:
        """Memory of this thread that begins at a page boundary, as anonymous maps do."""
        window: ByteArray | None = getattr(self._windows, "bytes", None)
        if window is None:
            window = self._windows.bytes = np.frombuffer(mmap.mmap(-1, _WINDOW_BYTES), np.uint8)
        return window


def moves_from_gpus() -> bool:
    """Whether the library by which GPUs and disks copy, kvikio, is installed."""
    try:
        return find_spec("kvikio") is not None
    except ValueError:  # imported, and without a specification
        return True


class GpuFile:
    """Space in a file without a name that a GPU's memory is copied to and from by kvikio.

    Where the system has GPUDirect Storage, copies do not pass through the host; elsewhere kvikio copies through it.

    Args:
        size_bytes: Its size; reserved at once.
        folder: Folder of the file.

    Raises:
        OffloadError: The folder cannot be written, the disk has no room, or kvikio cannot be used.
    """

    waits = True

    def __init__(self, size_bytes: int, folder: Path) -> None:
        self._folder = folder
        # kvikio opens files by name, twice; the name is gone before anything is written.
        try:
            self._directory = tempfile.TemporaryDirectory(dir=folder)
        except OSError as error:
            raise folder_not_writable(folder, error) from error
        with self._directory as directory:
            try:
                import kvikio

                self._file: Any = kvikio.CuFile(str(Path(directory) / "values"), "w+")
                os.posix_fallocate(self._file.fileno(), 0, max(size_bytes, PAGE_BYTES))
            except OSError as error:
                raise disk_full(folder, size_bytes, error) from error
            except (ImportError, RuntimeError) as error:
                raise OffloadError(
                    f"kvikio, by which values go from a GPU to a disk, cannot be used ({error}); "
                    f'leave out offload_tier="disk"'
                ) from error

    def write(self, offset: int, source: Any) -> None:
        """Copy all of `source`, bytes on a GPU, to `offset`."""
        self._whole(self._file.pwrite, offset, source)

    def read(self, offset: int, target: Any) -> None:
        """Fill `target`, bytes on a GPU, from `offset`."""
        self._whole(self._file.pread, offset, target)

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def _whole(self, transfer: Any, offset: int, array: Any) -> None:
        try:
            done = transfer(array, len(array), offset).get()
        except RuntimeError as error:
            raise OffloadError(f"copying to or from offload_dir {str(self._folder)!r} failed: {error}") from error
        if done != len(array):
            raise OffloadError(
                f"copying to or from offload_dir {str(self._folder)!r} ended after {format_bytes(done)} of "
                f"{format_bytes(len(array))}"
            )
