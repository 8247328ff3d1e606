"""The sizes that variants of a graph were planned for, kept on disk so that the next process plans for the same sizes.

Which sizes come first, and how long steps take, differs from run to run, and so would the variants.  At the sizes of an
earlier run, plans come from the plan cache and kernels from the inner compiler's cache.
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
"""Largest number of variants kept for one graph; Dynamo may make several graphs of one, for ranges of sizes."""
LARGER_SIZES = "larger sizes"
"""Label of a variant planned for larger sizes than those of the call that needed it."""


@dataclass(frozen=True, slots=True)
class PlannedSizes:
    """One variant.

    Attributes:
        label: Its purpose, for messages.
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
        directory: The cache folder; `None` keeps them in this object only.
        name: Digest of everything but the sizes that decides the plans of the graph.

    Attributes:
        name: As given.
    """

    def __init__(self, directory: Path | None, name: str) -> None:
        self._folder = None if directory is None else _folder(directory)
        self.name = name
        found = None if self._folder is None else self._folder.read(name)
        self.earlier = () if found is None else found.variants
        self._made: list[PlannedSizes] = []

    def add(self, label: str, sizes: tuple[int, ...], *, free: bool) -> None:
        """Keep one more, before those of earlier processes; beyond `MOST_VARIANTS` the last ones are dropped."""
        # A dictionary: in order, and each once.
        # Those of this process first: they are the ones that present sizes need.
        self._made.append(PlannedSizes(label, sizes, free))
        kept = dict.fromkeys([*self._made, *self.earlier])
        if self._folder is not None:
            self._folder.write(self.name, StoredVariants(tuple(kept)[:MOST_VARIANTS]))

    def for_sizes(self, sizes: Sequence[int], most: Sequence[int | None], *, ahead: bool) -> tuple[int, ...]:
        """The least sizes planned for earlier of which none is below `sizes`; `sizes` themselves if there are none.

        Args:
            sizes: Sizes to plan for.
            most: Largest sizes that may come, `None` for no limit.
            ahead: Whether the variant is for larger sizes than the call's; those are kept apart from all others.
        """
        return _least([one for one in self.earlier if (one.label == LARGER_SIZES) == ahead], sizes, most)

    def for_first(self, sizes: Sequence[int], most: Sequence[int | None]) -> tuple[int, ...]:
        """The same for the first call, from variants that recompute nothing: at smaller sizes they need not either."""
        return _least([one for one in self.earlier if one.free and one.label != LARGER_SIZES], sizes, most)

    def missing(self, planned: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Sizes that an earlier run planned for and this one did not."""
        # Those of variants for larger sizes come from `for_sizes`, when a call needs one.
        return [one.sizes for one in self.earlier if one.label != LARGER_SIZES and one.sizes not in planned]


def _least(known: Sequence[PlannedSizes], sizes: Sequence[int], most: Sequence[int | None]) -> tuple[int, ...]:
    """The least known sizes between `sizes` and `most` in every dimension; `sizes` themselves if there are none."""
    # Of another length: a file that was copied or edited.
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
