"""The names of places that values are moved to: a tier, and for disks the folder; part of the graphs that move them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from remat_compiler.ir.plan import Tier

_DIRECT = ",direct"


@dataclass(frozen=True, slots=True)
class Place:
    """Where values are moved to.

    Attributes:
        tier: The kind of memory.
        folder: Folder of the file, for a disk.
        direct: Whether copies pass by the system's cache of files, for a disk.
    """

    tier: Tier
    folder: Path | None = None
    direct: bool = False

    @staticmethod
    def of(tier: Tier, folder: Path | None = None, direct: bool = False) -> Place:
        """The place of `tier`; files go to the system's folder for temporary ones if no other is named."""
        if tier is not Tier.DISK:
            return Place(tier)
        return Place(tier, folder or Path(tempfile.gettempdir()), direct)

    @staticmethod
    def parse(text: str) -> Place:
        """The place that `str` of it gave."""
        kind, _, folder = text.partition(":")
        tier = kind.removesuffix(_DIRECT)
        return Place(Tier(tier), Path(folder) if folder else None, kind != tier)

    def __str__(self) -> str:
        kind = self.tier.value + (_DIRECT if self.direct else "")
        return kind if self.folder is None else f"{kind}:{self.folder}"
