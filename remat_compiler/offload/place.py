"""The names of places that values are moved to: a tier, and for disks the folder; part of the graphs that move them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from remat_compiler.ir.plan import Tier


@dataclass(frozen=True, slots=True)
class Place:
    """Where values are moved to.

    Attributes:
        tier: The kind of memory.
        folder: Folder of the file, for a disk.
    """

    tier: Tier
    folder: Path | None = None

    @staticmethod
    def of(tier: Tier, folder: Path | None = None) -> Place:
        """The place of `tier`; files go to the system's folder for temporary ones if no other is named."""
        if tier is not Tier.DISK:
            return Place(tier)
        return Place(tier, folder or Path(tempfile.gettempdir()))

    @staticmethod
    def parse(text: str) -> Place:
        """The place that `str` of it gave."""
        tier, _, folder = text.partition(":")
        return Place(Tier(tier), Path(folder) if folder else None)

    def __str__(self) -> str:
        return self.tier.value if self.folder is None else f"{self.tier.value}:{self.folder}"
