"""A machine without a GPU as the device of a training step: its memory, and how fast it was found to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from remat_compiler.devices.gpus import Gpu

CPU = "cpu"
"""Name by which users ask for this machine."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU of a machine, and its memory.

    Attributes:
        product: What its maker calls it.
        threads: Threads that torch computes with.
        total_bytes: Memory of the machine.
        usable_bytes: Memory that is left to a training step.
        compiler: The C++ compiler that Inductor would use; empty without one.
        figures: What calibration measured, by the names of `costs.calibration.FIGURES`; empty if it could not be timed,
            and then the nominal rates of one core stand for it.
    """

    product: str
    threads: int
    total_bytes: int
    usable_bytes: int
    compiler: str
    figures: Mapping[str, int]

    @property
    def name(self) -> str:
        """Short name, by which users ask for it."""
        return CPU


Device: TypeAlias = Gpu | Cpu
"""What a training step may be asked about."""
