"""Where a graph may move values to, and the room that is kept there for its steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.errors import OffloadError, OptionError
from remat_compiler.ir.plan import Tier
from remat_compiler.log import logger_of
from remat_compiler.offload.direct_file import moves_from_gpus
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Reservation, held_on_disk, store_of
from remat_compiler.options import RematOptions
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.simulate.transfers import moved_bytes
from remat_compiler.units import format_bytes

logger = logger_of(__name__)

DISK_SHARE = 0.95
"""Part of what is free on a disk that is reserved at most."""


def place_of(options: RematOptions, device_types: Collection[str]) -> Place | None:
    """Where a graph on these devices may move values to; `None` for nowhere.

    Raises:
        OptionError: The tier cannot be reached from the device with what is installed.
        OffloadError: The folder cannot be written.
    """
    if not options.offload_budget:
        return None
    other = sorted(set(device_types) - {"cpu", "cuda"})
    if other:
        logger.warning("offload_budget has no effect on %s: values are moved from CPUs and CUDA devices", other[0])
        return None
    from_gpu = "cuda" in device_types
    if from_gpu and options.offload_tier == "disk" and not moves_from_gpus():
        raise OptionError(
            'offload_tier="disk" from a GPU needs kvikio, which is not installed: pip install '
            '"remat-compiler[disk-cu13]", or "[disk-cu12]", by the CUDA that torch is built for; '
            'or leave it out, and values go to the "host"'
        )
    on_host = options.offload_tier == "host" or (from_gpu and options.offload_tier == "auto")
    place = Place.of(Tier.HOST if on_host else Tier.DISK, options.offload_dir, options.offload_direct)
    if place.folder is not None and not os.access(place.folder, os.W_OK | os.X_OK):
        what = "cannot be written" if place.folder.is_dir() else "does not exist"
        raise OffloadError(f"offload_dir {str(place.folder)!r} {what}; name a folder on a fast disk")
    return place


def usable_bytes(place: Place, budget_bytes: int) -> int:
    """The part of `budget_bytes` that is free at `place`; with a warning if that is not all of it."""
    # Host memory is taken from the same total by everything else that runs: only taking it tells whether it is there.
    if place.folder is None:
        return budget_bytes
    usable = min(budget_bytes, int(DISK_SHARE * _free_bytes(place.folder)))
    if usable < budget_bytes:
        logger.warning(
            "offload_budget=%s is more than the %s that are free on the disk of %s: plans move no more than these",
            format_bytes(budget_bytes),
            format_bytes(usable),
            place.folder,
        )
    return usable


def _free_bytes(folder: Path) -> int:
    # What is reserved there already may be the graph's own, from an earlier compilation.
    return shutil.disk_usage(folder).free + held_on_disk(folder)


def with_room(
    attempt: Attempt,
    runs: int,
    pinned: bool,
    known: Sequence[PlanReport] = (),
    limit_bytes: int | None = None,
    before: Reservation | None = None,
) -> Attempt:
    """`attempt` with room for what its steps move.

    Args:
        attempt: A compilation.
        runs: How often a step runs it.
        pinned: Whether a GPU copies to and from it.
        known: Its reports, where no partition tells what it moves.
        limit_bytes: The most that steps under way at the same time may move; `None` for `runs` times what it may.
        before: Room that it takes the place of.

    Raises:
        OffloadError: There is no such room any more; `before` is as it was.
    """
    # What could not be planned moves nothing.
    if attempt.failure is not None:
        return attempt
    most = attempt.request.offload_bytes
    if attempt.partitions:
        moved = sum(moved_bytes(p.problem.graph, p.result.plan) for p in attempt.partitions if p.result.plan)
    else:
        # From a compiler's cache: without reports, as much as it may move.
        moved = sum(report.offloaded_bytes for report in known) if known else most
    place, limit_bytes = attempt.request.place, runs * most if limit_bytes is None else limit_bytes
    # On paper there is no memory to pin, and nothing is copied.
    if place is None or not moved or torch_compat.is_on_paper():
        return attempt
    store = store_of(place, pinned)
    if before is None or before.store is not store:
        return replace(attempt, room=store.reserve(runs * moved, limit_bytes))
    # Both together may be more than there is.
    store.resize(before, runs * moved, limit_bytes)
    return replace(attempt, room=before)
