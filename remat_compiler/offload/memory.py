"""Pieces of memory off the device: ordinary or pinned host memory, and space in a file that has no name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from remat_compiler.errors import OffloadError
from remat_compiler.units import format_bytes

ByteArray = npt.NDArray[np.uint8]


class Memory(Protocol):
    """A piece of memory of fixed size.

    Attributes:
        waits: Whether a thread that copies waits for a device, and does not copy by itself.
    """

    waits: bool

    def write(self, offset: int, source: ByteArray) -> None:
        """Copy all of `source` to `offset`."""

    def read(self, offset: int, target: ByteArray) -> None:
        """Fill `target` from `offset`."""

    def close(self) -> None:
        """Give the memory back; nothing may use it any more."""


class HostMemory:
    """Host memory that torch's allocator does not count; pinned, so that GPUs copy from and to it by themselves.

    Args:
        size_bytes: Its size.
        pinned: Whether to register it with the CUDA driver.  In one piece, since torch rounds each pinned tensor up to
            a power of two.

    Raises:
        OffloadError: There is not so much memory, or the driver refuses it.
    """

    waits = False

    def __init__(self, size_bytes: int, pinned: bool) -> None:
        try:
            self.bytes: ByteArray = np.empty(size_bytes, np.uint8)
        except MemoryError as error:
            raise OffloadError(f"the host has no {format_bytes(size_bytes)} of memory left to offload to") from error
        self._pinned = pinned
        # The last copy of each stream of a GPU, which ends after the earlier ones.
        self._last: dict[Any, Any] = {}
        if pinned:
            status = torch.cuda.cudart().cudaHostRegister(self.bytes.ctypes.data, size_bytes, 0)  # type: ignore[no-untyped-call]
            if int(status):
                raise OffloadError(f"{format_bytes(size_bytes)} of host memory cannot be pinned ({status})")

    def write(self, offset: int, source: ByteArray) -> None:
        """Copy all of `source` to `offset`."""
        np.copyto(self.bytes[offset : offset + len(source)], source)

    def read(self, offset: int, target: ByteArray) -> None:
        """Fill `target` from `offset`."""
        np.copyto(target, self.bytes[offset : offset + len(target)])

    def copied_by(self, stream: Any, done: Any) -> None:
        """A stream of a GPU has been given a copy from or to this memory, and an event that comes with its end."""
        self._last[stream] = done

    def close(self) -> None:
        """Give the memory back, once no copy uses it."""
        for done in self._last.values():
            done.synchronize()
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.ctypes.data)  # type: ignore[no-untyped-call]
        self.bytes = np.empty(0, np.uint8)


class DiskMemory:
    """Space in a file that has no name: the system removes it with the process, however that ends.

    Args:
        size_bytes: Its size; reserved at once, so that a full disk shows here and not in the middle of a step.
        folder: Folder of the file.

    Raises:
        OffloadError: The folder cannot be written, or the disk has no room.
    """

    waits = False

    def __init__(self, size_bytes: int, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as this object
        except OSError as error:
            raise folder_not_writable(folder, error) from error
        try:
            os.posix_fallocate(self._file.fileno(), 0, size_bytes)
        except OSError as error:
            self._file.close()
            raise disk_full(folder, size_bytes, error) from error

    def write(self, offset: int, source: ByteArray) -> None:
        """Copy all of `source` to `offset`."""
        self._whole(os.pwrite, offset, source.data)

    def read(self, offset: int, target: ByteArray) -> None:
        """Fill `target` from `offset`."""

        def fill(descriptor: int, piece: memoryview, position: int) -> int:
            return os.preadv(descriptor, [piece], position)

        self._whole(fill, offset, target.data)

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def _whole(self, transfer: object, offset: int, left: memoryview) -> None:
        """Repeat a positioned transfer, which may stop short, until nothing is left."""
        assert callable(transfer)
        try:
            while left:
                done = transfer(self._file.fileno(), left, offset)
                if not done:
                    raise OSError(0, "the file ends early")
                offset, left = offset + done, left[done:]
        except OSError as error:
            raise OffloadError(f"copying to or from offload_dir {str(self._folder)!r} failed: {error}") from error


def folder_not_writable(folder: Path, error: OSError) -> OffloadError:
    """The error for a folder in which no file can be made."""
    return OffloadError(
        f"offload_dir {str(folder)!r} cannot be written ({error.strerror}); name a folder on a fast disk"
    )


def disk_full(folder: Path, size_bytes: int, error: OSError) -> OffloadError:
    """The error for a disk that has no room for `size_bytes`."""
    return OffloadError(
        f"the disk of offload_dir {str(folder)!r} has no {format_bytes(size_bytes)} left ({error.strerror}); "
        f"lower offload_budget, or name another folder"
    )
