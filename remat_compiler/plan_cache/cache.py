"""Solved plans, kept in memory and on disk, and reused for the same problem and for other sizes of it.

    problem ─► key ──┬─ the same problem ──────────────► its plan, as it is
                     └─ the same key, a similar size ──► candidates, nearest first (see `reuse`)

A key names everything that decides a plan except the sizes of computed values, of which it names a class; the *exact*
digest of the problem covers those, too.  One file holds one plan, so that processes share a folder without locks.  A
plan that was taken from another size is kept under its own problem, with a mark, so that the same problem gives the
same plan next time.  It is no candidate for a third size, or small losses would add up.

An entry is only ever a proposal: whoever takes it verifies it first.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path

from remat_compiler.ir.json_folder import JsonFolder
from remat_compiler.plan_cache.key import DIGITS, CachedPlan, CacheMiss, CacheQuery, size_class

FORMAT_VERSION = 2
FOLDER, MISS_FOLDER = "plan-cache", "plan-cache-misses"
REACH = 1
"""Number of classes to either side in which plans of a similar size are sought."""
CANDIDATES = 6
"""Plans of similar sizes that are tried at most."""
MAX_IN_MEMORY = 256
MAX_FILES, MAX_BYTES = 1024, 64 * 2**20
MAX_MISSES = 64


class PlanCache:
    """Plans in memory and below a folder; safe in several threads and processes.

    Args:
        directory: Where plans are kept between processes; `None` keeps them in memory only.
        max_in_memory: Number of plans kept in memory: the most recently used ones.
    """

    def __init__(self, directory: Path | None, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self.files = None if directory is None else plan_folder(directory)
        self.misses = None if directory is None else miss_folder(directory)
        self._max_in_memory = max_in_memory
        self._known: OrderedDict[str, CachedPlan] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, question: CacheQuery) -> CachedPlan | None:
        """The answer to the same question, if it is known."""
        found = self._load(question.name)
        # The name holds shortened digests; the question is compared in full.
        if found is None or found.question != question:
            return None
        if self.files is not None:
            self.files.use(question.name)
        return found

    def similar(self, question: CacheQuery) -> list[CachedPlan]:
        """Plans that were solved for similar sizes, at most `CANDIDATES`, the nearest size first."""
        # Sizes are in the names of the files, so a candidate is read only when its turn comes.
        sizes = sorted(
            (abs(math.log(max(size, 1) / max(question.activation_bytes, 1))), name)
            for name, size in self._sizes(question.key.family)
            if abs(size_class(size) - question.key.size_class) <= REACH and name != question.name
        )
        found: list[CachedPlan] = []
        for _, name in sizes:
            entry = self._load(name)
            # Plans that were themselves taken from another size are left out, or small losses would add up.
            if entry is not None and not entry.seed and entry.question.key.family == question.key.family:
                found.append(entry)
            if len(found) == CANDIDATES:
                break
        return found

    def keep(self, entry: CachedPlan) -> None:
        """Keep `entry`, in place of an earlier one of the same question."""
        # In memory first: a folder that cannot be written must not cost this process its plan.
        self._remember(entry.question.name, entry)
        if self.files is not None:
            self.files.write(entry.question.name, entry)

    def note_miss(self, miss: CacheMiss) -> None:
        """Keep `miss` among the last ones, for `remat cache explain`."""
        if self.misses is not None:
            self.misses.write(f"{miss.at_ns}-{miss.question.exact[:8]}", miss)

    def __len__(self) -> int:
        """Plans in memory."""
        return len(self._known)

    def _sizes(self, family: str) -> list[tuple[str, int]]:
        """Names of the entries of one family, with their bytes of activations."""
        # The folder is listed outside the lock, which other threads wait for.
        with self._lock:
            names = set(self._known)
        if self.files is not None:
            names.update(self.files.names())
        # Foreign files may lie in the folder; only names of the expected form count.
        parts = ((name, name.split("-")) for name in names if name.startswith(family[:DIGITS]))
        return [(name, int(part[1])) for name, part in parts if len(part) == 3 and part[1].isdecimal()]

    def _load(self, name: str) -> CachedPlan | None:
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
        found = None if self.files is None else self.files.read(name)
        if found is None:
            return None
        # Someone renamed or copied the file; its plan would be found for the wrong question.
        if found.question.name != name:
            assert self.files is not None
            self.files.warn(name, f"ignored {self.files.path / name}.json, which holds the plan of another problem")
            return None
        self._remember(name, found)
        return found

    def _remember(self, name: str, entry: CachedPlan) -> None:
        with self._lock:
            self._known[name] = entry
            self._known.move_to_end(name)
            while len(self._known) > self._max_in_memory:
                # The front of the order is the plan used longest ago.
                self._known.popitem(last=False)


def plan_folder(directory: Path) -> JsonFolder[CachedPlan]:
    """The plans below the cache folder `directory`."""
    return JsonFolder(directory / FOLDER, CachedPlan, "cached-plan", FORMAT_VERSION, MAX_FILES, MAX_BYTES)


def miss_folder(directory: Path) -> JsonFolder[CacheMiss]:
    """The last misses below the cache folder `directory`."""
    where = directory / MISS_FOLDER
    # Nothing depends on them, and a folder that cannot be written has its warning from the plans.
    return JsonFolder(where, CacheMiss, "cache-miss", FORMAT_VERSION, MAX_MISSES, MAX_BYTES, logging.DEBUG)


@cache
def shared_plan_cache(directory: Path) -> PlanCache:
    """The one cache of a folder in this process."""
    return PlanCache(directory)
