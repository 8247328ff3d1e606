"""Devices of a graph on which the budget means something else than on one GPU or the CPU, told of once in a process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from remat_compiler.log import logger_of

logger = logger_of(__name__)

_USUAL = frozenset({"cpu", "cuda", "meta"})


def tell_of_devices(devices: Iterable[torch.device]) -> None:
    """Warn of devices that are neither a CPU nor CUDA's, and of several GPUs in one graph.

    Args:
        devices: The devices that the graph computes on.
    """
    found = set(devices)
    for kind in sorted({device.type for device in found} - _USUAL):
        _warn(
            f"budgets are approximate on {kind!r}, where this project has not run: results are counted in multiples of "
            '512 bytes, what operators take inside is not, times are nominal, and "auto" knows no limit'
        )
    # A device without a number is the present one, which may be among the others.
    gpus = {device.index for device in found if device.type == "cuda" and device.index is not None}
    if len(gpus) > 1:
        _warn(
            f"a graph computes on {len(gpus)} GPUs: memory_budget is what all of them may take together, and "
            '"auto" what the fullest one has left'
        )


@cache
def _warn(text: str) -> None:
    logger.warning("%s", text)
