"""Errors of memory that ran out, and what the allocator of each device says of its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_CPU = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
_LIBRARIES = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_OF_TORCH = Path(torch.__file__).parent
_ACTIVE = "active_allocated"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device, or of the machine, ran out."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # The machine's allocator and libraries of CUDA raise it as `RuntimeError`.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in (*_CPU, *_LIBRARIES))


def note_of(error: BaseException) -> str:
    """All notes that an error carries."""
    return "\n".join(getattr(error, "__notes__", ()))


def add_note(error: BaseException, text: str) -> None:
    """Add a note that is shown below the error; its class, arguments and message stay (PEP 678)."""
    # As `BaseException.add_note` does it, which Python 3.10 has not.
    error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device.

    Attributes:
        name: Its name, such as ``cuda:0``.
        total_bytes: All of it.
        free_bytes: Free by the driver.
        allocated_bytes: Bytes of tensors.
        most_bytes: Most bytes of tensors at once, since torch's statistics were reset.
        reserved_bytes: Bytes that torch's allocator took from the driver, tensors included.
        free_pieces: Sizes in bytes of the pieces of that which no tensor uses, largest first.
        pool_bytes: Bytes that are reserved for private pools, as CUDA graphs have.
        places: Bytes of tensors by the line of the program that made them, largest first; empty unless
            `torch.cuda.memory._record_memory_history` runs.
    """

    name: str
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    most_bytes: int
    reserved_bytes: int
    free_pieces: tuple[int, ...] = ()
    pool_bytes: int = 0
    places: tuple[tuple[str, int], ...] = ()

    @property
    def elsewhere_bytes(self) -> int:
        """Bytes that other processes, the driver and libraries take."""
        return max(self.total_bytes - self.free_bytes - self.reserved_bytes, 0)


def device_memories(cuda: Any = torch.cuda) -> tuple[DeviceMemory, ...]:
    """Memory of each CUDA device that this process uses.

    Args:
        cuda: Who is asked: `torch.cuda`, or what answers as it does.
    """
    if not (cuda.is_available() and cuda.is_initialized()):
        return ()
    found = [cuda.memory_stats_as_nested_dict(index) for index in range(cuda.device_count())]
    used = [(index, stats) for index, stats in enumerate(found) if stats and stats["reserved_bytes"]["all"]["peak"]]
    segments = cuda.memory_snapshot() if used else []
    return tuple(_memory(cuda, index, stats, segments) for index, stats in used)


def _memory(cuda: Any, index: int, stats: Any, segments: Any) -> DeviceMemory:
    free_bytes, total_bytes = cuda.mem_get_info(index)
    own = [segment for segment in segments if segment["device"] == index]
    pieces = [block["size"] for block in _blocks(own) if not block["state"].startswith("active")]
    places: Counter[str] = Counter()
    for block in _blocks(own):
        place = _place(block.get("frames") or ()) if block["state"] == _ACTIVE else ""
        if place:
            places[place] += block["size"]
    return DeviceMemory(
        name=f"cuda:{index}",
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        allocated_bytes=stats["allocated_bytes"]["all"]["current"],
        most_bytes=stats["allocated_bytes"]["all"]["peak"],
        reserved_bytes=stats["reserved_bytes"]["all"]["current"],
        free_pieces=tuple(sorted(pieces, reverse=True)),
        pool_bytes=sum(one["total_size"] for one in own if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0)),
        places=tuple(sorted(places.items(), key=lambda one: (-one[1], one[0]))),
    )


def _blocks(segments: Any) -> Iterator[Any]:
    for segment in segments:
        yield from segment["blocks"]


def _place(frames: Any) -> str:
    """The innermost line of Python that is none of torch's."""
    for frame in frames:
        path = Path(frame["filename"])
        if path.suffix == ".py" and _OF_TORCH not in path.parents:
            return f"{path.name}:{frame['line']}"
    return ""
