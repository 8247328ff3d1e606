"""Files that others may have changed: only plain files of bounded size are read, and files are written whole or not.

A path may lead to a pipe, which would never end, to a device, or to a file larger than memory: type and size are
checked before anything is read.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 2**28
"""Size of the largest file that is read; the plans of the largest known graphs take a thousandth of it."""
TEMPORARY: Final = ".tmp"
"""Suffix of a file that is not whole yet."""

# A pipe would block until someone writes to it; elsewhere than on Unix there is no such flag, and no such pipe.
_READ_ONLY: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_told: Final[set[tuple[str, int | None]]] = set()


def read_bounded(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """All bytes of the regular file `path`.

    Raises:
        OSError: It cannot be read, is no regular file, or has more than `most_bytes`.
    """
    descriptor = os.open(path, _READ_ONLY)
    try:
        # Of the open file, not of the path, behind which another file may stand a moment later.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        size, data = status.st_size, b""
        if size <= most_bytes:
            with open(descriptor, "rb", closefd=False) as file:
                # One byte more than allowed, which shows that the file has grown since.
                data = file.read(most_bytes + 1)
        if max(size, len(data)) > most_bytes:
            raise OSError(errno.EFBIG, f"it has {max(size, len(data))} bytes, at most {most_bytes} are read", str(path))
        return data
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str | bytes, mode: int = 0o600) -> None:
    """Write `text` to `path`, and create its folder: a reader sees the former content, all of `text`, or no file.

    Args:
        path: The file, which is replaced.
        text: Its new content.
        mode: Its permissions, less those that the process's mask withholds.

    Raises:
        OSError: It cannot be written; no temporary file remains.
    """
    # In the same folder, for a rename is atomic only within one file system; the name is random, since several
    # processes may write the same file, and cut, since file systems limit its length.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem[:64]}-{secrets.token_hex(8)}{TEMPORARY}")
    descriptor = os.open(temporary, _NEW, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8") if isinstance(text, str) else text)
        os.replace(temporary, path)
    except BaseException:  # an interrupt must not leave the file behind either
        with suppress(OSError):
            os.unlink(temporary)
        raise


def is_first_failure(folder: Path, error: OSError) -> bool:
    """Whether this is the process's first error of its kind below `folder`, so that a full disk is warned of once."""
    what = (str(folder), error.errno)
    if what in _told:
        return False
    _told.add(what)
    return True
