"""The sizes that variants of a graph were planned for, kept on disk: the next process plans for the same.

Which sizes come first, and how long steps take, differs from run to run, and so would the variants.  Planned for the
sizes of an earlier run, plans come from the plan cache and kernels from the inner compiler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from remat_compiler.ir.json_folder import JsonFolder

FOLDER, FORMAT_VERSION, MOST_FILES, MOST_BYTES = "variants", 2, 4_096, 16_000_000
MOST_VARIANTS = 16
"""Variants that are kept of one graph; Dynamo may make several graphs of it, for ranges of sizes."""
AHEAD = "larger sizes"
"""Label of the variant that was planned for larger sizes than were at hand."""


@dataclass(frozen=True, slots=True)
class PlannedSizes:
    """One variant.

    Attributes:
        label: What people are shown of its purpose.
        sizes: The sizes that it was planned for.
        free: Whether it recomputes nothing.
    """

    label: str
    sizes: tuple[int, ...]
    free: bool


@dataclass(frozen=True, slots=True)
class StoredVariants:
    """All variants of a graph, in the order in which they were made."""

    variants: tuple[PlannedSizes, ...] = ()


class VariantStore:
    """The variants of one graph.

    Args:
        directory: The cache folder; `None` keeps them for this object only.
        name: Digest of everything that decides what is planned for the graph, but its sizes.
    """

    def __init__(self, directory: Path | None, name: str) -> None:
        self._folder = None if directory is None else _folder(directory)
        self._name = name
        found = None if self._folder is None else self._folder.read(name)
        self.earlier = () if found is None else found.variants
        self._made: list[PlannedSizes] = []

    def add(self, label: str, sizes: tuple[int, ...], *, free: bool) -> None:
        """Keep one more, before those of earlier processes; the last of too many goes."""
        self._made.append(PlannedSizes(label, sizes, free))
        kept = dict.fromkeys([*self._made, *self.earlier])
        if self._folder is not None:
            self._folder.write(self._name, StoredVariants(tuple(kept)[:MOST_VARIANTS]))

    def for_sizes(self, sizes: Sequence[int], most: Sequence[int | None], *, ahead: bool) -> tuple[int, ...]:
        """The least sizes planned for earlier that are nowhere below `sizes`, else `sizes` themselves.

        Args:
            sizes: Sizes to plan for.
            most: Largest sizes that may come, `None` for no limit.
            ahead: Whether to plan for larger sizes than are at hand; such variants and others are kept apart.
        """
        return _least([one for one in self.earlier if (one.label == AHEAD) == ahead], sizes, most)

    def for_first(self, sizes: Sequence[int], most: Sequence[int | None]) -> tuple[int, ...]:
        """The same for the first call: what recomputes nothing at larger sizes need not at these; else `sizes`."""
        return _least([one for one in self.earlier if one.free and one.label != AHEAD], sizes, most)

    def missing(self, planned: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Sizes that an earlier run planned for and this one did not, but for those planned ahead."""
        return [one.sizes for one in self.earlier if one.label != AHEAD and one.sizes not in planned]


def _least(known: Sequence[PlannedSizes], sizes: Sequence[int], most: Sequence[int | None]) -> tuple[int, ...]:
    """The least of the known sizes that are nowhere below `sizes` nor above `most`, else `sizes` themselves."""
    fitting = [
        one.sizes
        for one in known
        if len(one.sizes) == len(sizes)
        and all(size <= n and (top is None or n <= top) for n, size, top in zip(one.sizes, sizes, most))
    ]
    return min(fitting, key=math.prod, default=tuple(sizes))


@cache
def _folder(directory: Path) -> JsonFolder[StoredVariants]:
    return JsonFolder(directory / FOLDER, StoredVariants, "variants", FORMAT_VERSION, MOST_FILES, MOST_BYTES)
