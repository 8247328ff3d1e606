"""`remat cache` lists the cached plans, `remat cache explain` says why the last ones were missed, `remat cache clear`
removes them."""

from __future__ import annotations

import argparse
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remat_compiler.errors import CacheError
from remat_compiler.ir.json_folder import JsonFolder
from remat_compiler.ir.problem import UNLIMITED_BYTES
from remat_compiler.ir.text_form import table
from remat_compiler.options import Environment
from remat_compiler.plan_cache.cache import miss_folder, plan_folder
from remat_compiler.plan_cache.key import CachedPlan, CacheMiss
from remat_compiler.plan_cache.misses import Explanation, explain
from remat_compiler.units import format_bytes

_SHOWN_MISSES = 10
_LONGEST = 60
_WHICH = "give the folder that REMAT_CACHE_DIR named when plans were made"
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def add_cache_commands(commands: Any) -> None:
    """Add `cache` and its own subcommands to the parser's subcommands."""
    cache = commands.add_parser("cache", help="list, explain or clear the cached plans", parents=[_where(None)])
    cache.set_defaults(command=_list)
    below = cache.add_subparsers(metavar="COMMAND")
    # A default of a parser below would overwrite what was given to the one above.
    where = _where(argparse.SUPPRESS)
    for name, command, text in (
        ("list", _list, "list the cached plans"),
        ("explain", _explain, "say why the last plans were not found"),
        ("clear", _clear, "remove all cached plans"),
    ):
        below.add_parser(name, help=text, parents=[where]).set_defaults(command=command)


def _where(default: str | None) -> argparse.ArgumentParser:
    """The option that names the folder."""
    parser = argparse.ArgumentParser(add_help=False)
    text = "cache folder (default: REMAT_CACHE_DIR, else ~/.cache/remat)"
    parser.add_argument("--dir", type=Path, metavar="DIR", default=default, help=text)
    return parser


def _list(options: argparse.Namespace) -> str:
    """The text of `remat cache`: one line per plan, the most recently used one first."""
    directory = _directory(options)
    folder = plan_folder(directory)
    now = time.time()
    rows: list[tuple[str, ...]] = []
    # Only listing can fail as a whole; a broken file is counted below.
    with _told(directory, "listed"):
        files, unreadable = folder.files(), 0
    for file in files:
        entry = folder.read(file.name)
        if entry is None:
            unreadable += 1
            continue
        rows.append((*_row(entry), format_bytes(file.num_bytes), _age(now - entry.made_at_ns / 1e9)))
    if not files:
        return f"no plans are cached in {folder.path}\n"
    head = ("graph", "parameters", "activations", "budget", "planner", "status", "peak", "added", "solved")
    lines = table([(*head, "file", "age"), *rows], right=(2, 3, 6, 7, 9, 10)) if rows else []
    total = format_bytes(sum(file.num_bytes for file in files))
    broken = f", {unreadable} of them unreadable" if unreadable else ""
    return "".join(f"{line}\n" for line in [*lines, f"{len(files)} plans{broken}, {total} in {folder.path}"])


def _row(entry: CachedPlan) -> tuple[str, ...]:
    """The columns of one plan."""
    key, result = entry.question.key, entry.result
    # A graph without times has no step to relate the added time to.
    added = f"{100 * result.added_ns / entry.step_ns:.1f} %" if entry.step_ns else "-"
    return (
        key.structure[:8],
        key.parameters[:8],
        format_bytes(entry.question.activation_bytes),
        _budget(key.budget_bytes),
        key.planner,
        result.status.value,
        format_bytes(result.peak_bytes),
        added,
        "for another size" if entry.seed else "for this one",
    )


def _explain(options: argparse.Namespace) -> str:
    """The text of `remat cache explain`: the last misses, the latest first."""
    directory = _directory(options)
    plans = [entry for entry in _all(plan_folder(directory)) if isinstance(entry, CachedPlan)]
    misses = [miss for miss in _all(miss_folder(directory)) if isinstance(miss, CacheMiss)]
    misses.sort(key=lambda miss: -miss.at_ns)
    if not misses:
        return f"no misses are noted in {directory}\n"
    now = time.time()
    shown = ["\n".join(_explained(explain(miss, plans), now)) for miss in misses[:_SHOWN_MISSES]]
    rest = len(misses) - len(shown)
    more = f"\n\n... and {rest} earlier ones" if rest else ""
    return "\n\n".join(shown) + more + "\n"


def _explained(one: Explanation, now: float) -> list[str]:
    """One miss as lines."""
    asked = one.miss.question
    lines = [
        f"{_age(now - one.miss.at_ns / 1e9)} ago: graph {asked.key.structure[:8]}, activations of "
        f"{format_bytes(asked.activation_bytes)}, budget {_budget(asked.key.budget_bytes)}, planner {asked.key.planner}"
    ]
    lines += [f"  refused: {reason}" for reason in one.miss.refused]
    if one.nearest is None:
        lines.append("  nothing was cached before, or it is gone")
    elif one.differences:
        lines.append(f"  nearest: {', '.join(_row(one.nearest)[:5])}; it differs in")
        rows = [("   ", d.field, "asked", _cut(d.asked), "known", _cut(d.known)) for d in one.differences]
        lines += table(rows)
    # With refusals the lines above explain the miss already.
    elif not one.miss.refused:
        lines.append(
            "  the nearest plan has the same key: it was not yet kept, or plans of other sizes were not allowed"
        )
    return lines


def _clear(options: argparse.Namespace) -> str:
    """The text of `remat cache clear`."""
    directory = _directory(options)
    folders: tuple[JsonFolder[CachedPlan], JsonFolder[CacheMiss]] = (plan_folder(directory), miss_folder(directory))
    with _told(directory, "removed"):
        # Misses go with the plans: without them there is nothing to compare a miss with.
        plans, _ = (folder.clear() for folder in folders)
    return f"removed {plans} plans from {folders[0].path}\n"


@contextmanager
def _told(directory: Path, what: str) -> Iterator[None]:
    """Raise CacheError if the files of the block cannot be `what`, a participle such as ``listed``."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"the cached plans in {directory} cannot be {what} ({error}); do it as their owner, or name another "
            "folder by --dir"
        ) from error


def _directory(options: argparse.Namespace) -> Path:
    """The cache folder.

    Raises:
        CacheError: No folder is known, or the one that was named is not a folder.
    """
    named: Path | None = options.dir
    directory = Environment.read().cache_dir if named is None else named
    if directory is None:
        raise CacheError("no folder is known, since the process has no home directory; name one by --dir")
    try:
        # Not `is_dir`, which does not tell a missing folder from a file.
        is_folder = stat.S_ISDIR(directory.stat().st_mode)
    except FileNotFoundError:
        is_folder = named is None  # nothing was kept yet
    # A part of the path above it is a file.
    except NotADirectoryError:
        is_folder = False
    except OSError as error:
        raise CacheError(f"{directory} cannot be looked into ({error}); {_WHICH}") from error
    if not is_folder:
        raise CacheError(f"{directory} is no folder; {_WHICH}")
    return directory


def _all(folder: JsonFolder[Any]) -> list[object]:
    """Every document of a folder that can be read."""
    found = (folder.read(name) for name in folder.names())
    return [one for one in found if one is not None]


def _budget(num_bytes: int) -> str:
    return "none" if num_bytes >= UNLIMITED_BYTES else format_bytes(num_bytes)


def _age(seconds: float) -> str:
    """`seconds` in the largest unit that fits."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
