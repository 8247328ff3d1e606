"""Calibrated figures of a device that cannot be right, judged by the others; and the better of two calibrations."""

from __future__ import annotations

from collections.abc import Mapping

from remat_compiler.costs.calibration import best_first
from remat_compiler.costs.families import FAMILIES

LEAST_OF_PRODUCT = 1 / 12
"""Rate of a family of kernels, as a part of the float32 product's, below which it may have been measured under load."""
LEAST_OF_OTHER = 1 / 6
"""The same for its forward, as a part of its backward's, and the other way round."""


def better(fresh: Mapping[str, int], kept: Mapping[str, int]) -> dict[str, int]:
    """The faster of two measurements of each figure, since other users of a device only make it slower."""
    return {name: best_first(name, (figure, kept.get(name, figure)))[0] for name, figure in fresh.items()}


def implausible(device_type: str, figures: Mapping[str, int]) -> list[str]:
    """Families of kernels whose rate is far below what the device's other families say.

    A family is compared with the product of float32, and with its own other direction.
    """

    def rate(name: str) -> int:
        return figures[f"{device_type} flops_per_s {name}"]

    found = []
    for family in FAMILIES:
        other = family.removesuffix("_backward") if family.endswith("_backward") else f"{family}_backward"
        if rate(family) < max(LEAST_OF_PRODUCT * rate("float32"), LEAST_OF_OTHER * rate(other)):
            found.append(family)
    return found
