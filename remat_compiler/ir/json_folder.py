"""A bounded folder of JSON documents, one value a file: safe to share between processes, without locks.

    write   to a temporary file, then renamed over the name: a reader sees the old document, the new one, or none
    read    a file that is broken, cut off, foreign, of another version, not regular, or larger than any document is a
            miss with a warning, and stays as it is
    trim    the least recently used files are removed when there are too many files, or too many bytes

No document is ever read, changed and written back, so two processes that write at once lose nothing: of two documents
of one name the later one stays.  Documents are data (see `ir.codec`); nothing in them is executed.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from remat_compiler.errors import FormatError
from remat_compiler.files import TEMPORARY, is_first_failure, read_bounded, write_whole
from remat_compiler.ir.codec import from_document, to_document
from remat_compiler.log import logger_of

logger = logger_of(__name__)

T = TypeVar("T")

SUFFIX = ".json"
MOST_BITS = 63
"""Figures are bytes, nanoseconds and positions; larger ones were written by something else."""
ABANDONED_S = 3600
"""Age in seconds from which a temporary file counts as left behind by a process that was killed."""


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
        path: The folder; created by the first write.
        cls: The frozen dataclass that a document describes.
        kind: Kind of the documents, as their ``format`` names it.
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
        """The document `name`, or `None` if it does not exist or cannot be read."""
        try:
            return from_document(self.kind, self.version, self.cls, read_bounded(self._file(name)), MOST_BITS)
        # Nothing was kept yet. A folder that is a file has its warning when something is written.
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.warn(name, f"{self._file(name)} cannot be read ({error}); what it holds is made again")
            return None
        except FormatError as error:
            self.warn(name, f"ignored {self._file(name)}, which cannot be read ({error}); it is made again")
            return None

    def write(self, name: str, value: T) -> None:
        """Keep `value` as `name`; a folder that cannot be written, or a value without a JSON form, is one warning."""
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
        """Mark `name` as used now, so that others are trimmed first; does nothing if the file cannot be marked."""
        try:
            # Trimming goes by the time of modification: file systems often do not record the time of access.
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
        # The folder is made by the first write.
        except FileNotFoundError:
            return []
        except OSError as error:
            self.warn("", f"{self.path} cannot be read ({error}); nothing is taken from it")
            return []

    def clear(self) -> int:
        """Remove all documents and return their number.

        Raises:
            OSError: One of them cannot be removed.
        """
        names = self.names()
        for name in names:
            self._file(name).unlink(missing_ok=True)
        return len(names)

    def warn(self, about: str, text: str) -> None:
        """Log `text`, once for each subject `about`."""
        if about not in self._warned:
            self._warned.add(about)
            logger.log(self.level, "%s", text)

    def _trim(self) -> None:
        kept_bytes = 0
        for number, file in enumerate(self.files()):
            kept_bytes += file.num_bytes
            # The newest file stays even if it alone is too large, or a large plan would never be found again.
            if number >= self.max_files or (number and kept_bytes > self.max_bytes):
                # Another process may trim at the same time, so a file that is gone already is no error.
                self._file(file.name).unlink(missing_ok=True)
        # A temporary file that is younger may be in the hands of another process that writes it now.
        oldest = time.time() - ABANDONED_S
        for entry, status in self._entries():
            if entry.name.endswith(TEMPORARY) and status.st_mtime < oldest:
                Path(entry.path).unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Files of the folder with their figures; one that was removed meanwhile is left out."""
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except OSError:
                        continue  # removed since it was listed
                    # What is no file was put there by somebody else, counts for nothing, and cannot be unlinked.
                    if stat.S_ISREG(status.st_mode):
                        yield entry, status
        # As in `names`: nothing was written yet.
        except FileNotFoundError:
            return

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{SUFFIX}"
