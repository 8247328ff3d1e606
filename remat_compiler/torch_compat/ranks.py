"""The ranks of a distributed job, through `torch.distributed`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch.distributed as dist

from remat_compiler.torch_compat.paper_device import is_on_paper


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The processes that train together.

    Attributes:
        store: Their key-value store.
        rank: Number of this one.
        size: Their number.
    """

    store: Any
    rank: int
    size: int


def ranks() -> Ranks | None:
    """The ranks of the job; `None` if one process trains, or stands for one of them on paper."""
    if is_on_paper():
        return None
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    # The store through which the default group came together: it needs no collective, so no rank waits for another.
    return _ranks(dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size())


@lru_cache(maxsize=1)
def _ranks(store: Any, rank: int, size: int) -> Ranks:
    """One object for as long as the job's ranks are the same."""
    return Ranks(dist.distributed_c10d.PrefixStore("remat", store), rank, size)


def default_timeout_s() -> float | None:
    """Seconds after which communication of the default group fails; `None` if one process trains, or none is known."""
    if ranks() is None:
        return None
    group: Any = dist.distributed_c10d._get_default_group()
    # Some backends have no options.
    options: list[Any] = [getattr(group._get_backend(device), "options", None) for device in group._device_types]
    limits = [one._timeout.total_seconds() for one in options if hasattr(one, "_timeout")]
    return min(limits, default=None)
