"""A bounded folder of JSON documents, one value a file: safe to share between processes, without locks.

    write   to a temporary file, then renamed over the name: a reader sees the old document, the new one, or none
    read    what is broken, cut off, foreign or of another version is a warned miss, and so is what is no regular file
            or larger than any document; it stays as it is
    trim    the files used longest ago go, once there are too many, or too many bytes

Nothing is ever read, changed and written back, so that two processes that write at once lose nothing: of two documents
of one name the later stands.  Documents are data (see `ir.codec`); nothing in them is executed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from remat_compiler.errors import FormatError
from remat_compiler.files import TEMPORARY, is_first_failure, read_bounded, write_whole
from remat_compiler.ir.codec import from_document, to_document

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUFFIX = ".json"
MOST_BITS = 63
"""Figures are bytes, nanoseconds and positions; larger ones were written by something else."""
ABANDONED_S = 3600
"""Age in seconds from which a temporary file is one that a process left behind when it was killed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the folder.

    Attributes:
        name: Name of the document.
        num_bytes: Size of the file.
        used_at: When it was written or last used, in seconds since 1970.
    """

    name: str
    num_bytes: int
    used_at: float


class JsonFolder(Generic[T]):
    """Documents of one kind.

    Args:
        path: The folder; made when something is written.
        cls: The frozen dataclass that a document describes.
        kind: What the documents call themselves.
        version: Their version; rises with every change of `cls`.
        max_files: Files kept at most.
        max_bytes: Bytes kept at most, in all files together.
        level: Level at which trouble is logged.
    """

    def __init__(
        self,
        path: Path,
        cls: type[T],
        kind: str,
        version: int,
        max_files: int,
        max_bytes: int,
        level: int = logging.WARNING,
    ) -> None:
        self.path = path
        self.cls = cls
        self.kind = kind
        self.version = version
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.level = level
        self._warned: set[str] = set()

    def read(self, name: str) -> T | None:
        """The document `name`, or `None` where there is none that can be read."""
        try:
            return from_document(self.kind, self.version, self.cls, read_bounded(self._file(name)), MOST_BITS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.warn(name, f"{self._file(name)} cannot be read ({error}); what it holds is made again")
            return None
        except FormatError as error:
            self.warn(name, f"ignored {self._file(name)}, which cannot be read ({error}); it is made again")
            return None

    def write(self, name: str, value: T) -> None:
        """Keep `value` as `name`; a folder that cannot be written is one warning, and so is what has no JSON form."""
        try:
            write_whole(self._file(name), to_document(self.kind, self.version, value))
            self._trim()
        except TypeError as error:
            self.warn("", f"{self.path} cannot be written ({error}); what is found holds for this process only")
        except OSError as error:
            # Folders side by side fail together, and at a level that nobody sees none of them speaks for the others.
            if self.level < logging.WARNING or is_first_failure(self.path.parent, error):
                self.warn("", f"{self.path} cannot be written ({error}); what is found holds for this process only")

    def use(self, name: str) -> None:
        """Note that `name` was of use, so that others go first; nothing where that cannot be noted."""
        try:
            os.utime(self._file(name))
        except OSError as error:
            logger.debug("the use of %s is not noted: %s", name, error)

    def files(self) -> list[StoredFile]:
        """All documents, the one used last first."""
        found = [
            StoredFile(entry.name.removesuffix(SUFFIX), status.st_size, status.st_mtime)
            for entry, status in self._entries()
            if entry.name.endswith(SUFFIX)
        ]
        return sorted(found, key=lambda one: (-one.used_at, one.name))

    def names(self) -> list[str]:
        """Names of all documents, sorted."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(e.name.removesuffix(SUFFIX) for e in entries if e.name.endswith(SUFFIX))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.warn("", f"{self.path} cannot be read ({error}); nothing is taken from it")
            return []

    def clear(self) -> int:
        """Remove all documents; how many they were.

        Raises:
            OSError: One of them cannot be removed.
        """
        names = self.names()
        for name in names:
            self._file(name).unlink(missing_ok=True)
        return len(names)

    def warn(self, about: str, text: str) -> None:
        """Log `text`, once for what it is `about`."""
        if about not in self._warned:
            self._warned.add(about)
            logger.log(self.level, "%s", text)

    def _trim(self) -> None:
        kept_bytes = 0
        for number, file in enumerate(self.files()):
            kept_bytes += file.num_bytes
            if number >= self.max_files or (number and kept_bytes > self.max_bytes):
                self._file(file.name).unlink(missing_ok=True)
        oldest = time.time() - ABANDONED_S
        for entry, status in self._entries():
            if entry.name.endswith(TEMPORARY) and status.st_mtime < oldest:
                Path(entry.path).unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Files of the folder with their figures; what is no file, or was removed meanwhile, is left out."""
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except OSError:
                        continue
                    yield entry, status
        except FileNotFoundError:
            return

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{SUFFIX}"
