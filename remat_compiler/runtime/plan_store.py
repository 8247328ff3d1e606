"""What was decided for a graph, kept on disk, so that a compiler's cache hit still has its report.

On a hit in Inductor's caches the partitioner never runs.  The store remembers for every Dynamo graph and
every way of compiling it which request was final (so that the next process asks for the same and hits) and
what was reported.  Files are JSON, written atomically and never executed; a broken one is a warned miss.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that decides what is planned for a graph.

    Attributes:
        graph: Digest of Dynamo's graph and of its inputs' shapes, strides, types and devices.
        options: The options of the compilation, printed.
        budget: What the options' budget is in bytes here and now, where that is known before planning.
        costs: What decides the operators' times, see `costs.table.cost_identity`.
        inner_settings: Settings of the inner compiler that change what it emits, such as the thread count.
        versions: Versions of this project and of torch.
    """

    graph: str
    options: str
    budget: str
    costs: str
    inner_settings: str
    versions: str

    @property
    def digest(self) -> str:
        """File name of the entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """An entry.

    Attributes:
        request: Fields of the final `PartitionRequest`.
        limit_bytes: The user's budget in bytes; `None` for none.
        reports: JSON text of the report of each joint graph.
    """

    request: Mapping[str, Any]
    limit_bytes: int | None
    reports: tuple[str, ...]


class PlanStore:
    """Entries below one folder; `None` keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = None if directory is None else directory / "plans"

    def load(self, key: PlanKey) -> StoredPlan | None:
        """The entry of `key`, or `None` when there is none that can be read."""
        if self._directory is None:
            return None
        path = self._path(key)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format_version"] != FORMAT_VERSION:
                return None
            limit = record["limit_bytes"]
            reports = tuple(str(r) for r in record["reports"])
            return StoredPlan(dict(record["request"]), None if limit is None else int(limit), reports)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("ignored the stored plan %s, which cannot be read (%s); it is planned again", path, error)
            return None

    def save(self, key: PlanKey, plan: StoredPlan) -> None:
        """Write the entry of `key`; a folder that cannot be written is one warning."""
        if self._directory is None:
            return
        record = {"format_version": FORMAT_VERSION, **asdict(plan)}
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._directory, suffix=".tmp")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(record, file, sort_keys=True)
            os.replace(name, self._path(key))
        except OSError as error:
            logger.warning("plans are not stored in %s: %s; compilation goes on", self._directory, error)

    def _path(self, key: PlanKey) -> Path:
        assert self._directory is not None
        return self._directory / f"{key.digest}.json"
