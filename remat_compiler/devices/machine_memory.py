"""How much memory of the machine a process may still take: what nobody uses, within the limits of its control groups.

Containers and job schedulers limit memory by control groups; what a group may have is less than the machine has, and
each group above it has a limit of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_KIB = 1024
_GROUPS = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By version of control groups: the files with the limit and with what is used, and what can be given back of that."""


def total_bytes() -> int | None:
    """Memory of the machine; `None` where the system does not say."""
    return _by_sysconf("SC_PHYS_PAGES")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Memory that this process may still take without others having to move out; `None` where the system does not say.

    Args:
        root: Where the system's folders lie.
    """
    found = [size for size in (_unused_bytes(root), *_left_in_groups(root)) if size is not None]
    return max(min(found), 0) if found else None


def _unused_bytes(root: Path) -> int | None:
    """What the machine has left: caches of files that can be dropped count as left, where the system tells them."""
    for line in _text(root / "proc" / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * _KIB
    return _by_sysconf("SC_AVPHYS_PAGES")


def _by_sysconf(pages: str) -> int | None:
    names = ("SC_PAGE_SIZE", pages)
    # Not every system has both numbers.
    if not hasattr(os, "sysconf") or not all(name in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])


def _left_in_groups(root: Path) -> Iterator[int]:
    """What each control group of this process with a limit has left."""
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        version = 1 if controllers else 2
        top = root / "sys" / "fs" / "cgroup" / controllers
        own = top / path.lstrip("/")
        # In a container the own group may be the topmost one that is seen, whatever its path says.
        for folder in {top, own, *(parent for parent in own.parents if top in parent.parents)}:
            left = _left_in(folder, version)
            if left is not None:
                yield left


def _left_in(folder: Path, version: int) -> int | None:
    """What one group has left; `None` if it has no limit."""
    limit_file, used_file, cached = _GROUPS[version]
    limit, used = (_text(folder / name).strip() for name in (limit_file, used_file))
    if not limit.isdigit() or not used.isdigit():
        return None
    found = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    return int(limit) - int(used) + int(found.get(cached, 0))


def _text(path: Path) -> str:
    """Content of a file of the system; empty if there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
