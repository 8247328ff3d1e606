"""Whole numbers measured on this machine, by name: in memory and, with a directory, in one JSON file.

A file holds the figures of one *environment* (device, library, threads, settings); another environment has another
file.  Files are written atomically and never executed; one that cannot be used is a miss with a warning.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from remat_compiler import torch_compat
from remat_compiler.files import is_first_failure, read_bounded, write_whole
from remat_compiler.log import logger_of
from remat_compiler.operators.table import DIGEST

log = logger_of(__name__)

FORMAT_VERSION = 1
"""Version of the file's form, and of the way figures are measured; another one is a miss.  A fact about an operator
needs no other version: the whole table of operators is part of the `environment`."""
LARGEST = 2**56
"""Largest figure that a file may hold: far above all that is measured, and sums of such figures fit 64 bits."""


@dataclass(slots=True)
class FigureStore:
    """Measured figures of one kind.

    Attributes:
        kind: Name and unit of the figures, such as ``workspace_bytes``; names the file.
        directory: Where they are kept between processes; None keeps them in memory only.
        least: Smallest valid figure.
        known: Figures by name, for `environment()` only.
    """

    kind: str
    directory: Path | None = None
    least: int = 0
    known: dict[str, int] = field(default_factory=dict)
    _noted: dict[str, int] = field(default_factory=dict)
    _environment: tuple[str, ...] = ()

    def current(self) -> Mapping[str, int]:
        """The figures of the current environment; a live view that later additions show in."""
        now = environment()
        # Threads and settings can change within a process; figures of another environment do not hold.
        if now != self._environment:
            self._environment = now
            # Emptied in place, since views that were handed out share these dictionaries.
            self.known.clear()
            self._noted.clear()
            self.known.update(self._load())
        return ChainMap(self.known, self._noted)

    def note(self, fresh: Mapping[str, int]) -> None:
        """Keep `fresh` for this process and environment only."""
        self.current()
        self._noted.update(fresh)

    def add(self, fresh: Mapping[str, int], *, replaces: bool = False) -> None:
        """Keep `fresh`.

        Args:
            fresh: Figures by name.
            replaces: Whether they win over what the file has by then; else that wins, so that equal processes agree.
        """
        self.current()
        self.known.update(fresh)
        if self.directory is not None:
            # Read again, since another process may have stored figures meanwhile.
            self.known.update({**self._load(), **(fresh if replaces else {})})
            self._save()

    def _path(self) -> Path | None:
        if self.directory is None:
            return None
        # One file for each environment, so that none overwrites another's figures.
        digest = hashlib.sha256("\n".join(self._environment).encode()).hexdigest()[:16]
        return self.directory / f"{self.kind}-{digest}.json"

    def _load(self) -> dict[str, int]:
        path = self._path()
        if path is None:
            return {}
        try:
            return self._checked(json.loads(read_bounded(path)))
        # Nothing measured yet: the normal case on a first run.
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be used (%s); what it held is measured again", path, error)
            return {}

    def _save(self) -> None:
        path = self._path()
        assert path is not None
        record = {"version": FORMAT_VERSION, "environment": self._environment, self.kind: self.known}
        try:
            write_whole(path, json.dumps(record, sort_keys=True, indent=1))
        except OSError as error:
            # Several stores share the folder, and fail together.
            if is_first_failure(path.parent, error):
                log.warning("%s cannot be written (%s); the measurements hold for this process only", path, error)

    def _checked(self, record: object) -> dict[str, int]:
        if not isinstance(record, dict) or record.get("version") != FORMAT_VERSION:
            raise ValueError(f"not a file of version {FORMAT_VERSION}")
        figures = record.get(self.kind)
        # `type(n) is int`, because True is an instance of int.
        if not isinstance(figures, dict) or not all(
            type(n) is int and self.least <= n <= LARGEST for n in figures.values()
        ):
            raise ValueError(f"{self.kind} must map names to whole numbers from {self.least} to {LARGEST}")
        return {str(name): figure for name, figure in figures.items()}


@cache
def shared_store(kind: str, directory: Path | None, least: int = 0) -> FigureStore:
    """The one store of its kind in this process, so that nothing is measured or read twice."""
    return FigureStore(kind, directory, least)


def environment() -> tuple[str, ...]:
    """Everything besides the call that decides its time and its allocations, and what is known of operators."""
    return (
        f"operators {DIGEST}",
        f"torch {torch.__version__}",
        # A process that uses no GPU is not to make a context there, which takes memory to the end.
        f"device {device_name('cuda') if torch_compat.uses_cuda() else 'cpu'}",
        f"cpu {torch.backends.cpu.get_cpu_capability()} {device_name('cpu')}",
        f"threads {torch.get_num_threads()}",
        f"onednn {torch._C._get_mkldnn_enabled()}",
        f"float32 {torch_compat.float32_precisions()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"cudnn {torch.backends.cudnn.enabled} {torch.backends.cudnn.benchmark}",
    )


def device_name(device_type: str) -> str:
    """Name of the current device of the type, such as the model of the processor."""
    if device_type != "cuda":
        return _processor()
    # Figures of a GPU on paper must not be taken for those of a real one.
    return f"{torch.cuda.get_device_name()}{' on paper' if torch_compat.paper_gpu() else ''}"


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
