"""Statistics of device allocators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from remat_compiler.torch_compat.devices import uses_cuda


class CudaAllocator:
    """The caching allocator of one CUDA device.

    Bytes are those of whole blocks, as predictions are.

    Args:
        index: The device.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    def allocated_bytes(self) -> int:
        """Bytes in use now."""
        return self._stat("current")

    def peak_bytes(self) -> int:
        """Most bytes in use at once, since the statistics were reset."""
        return self._stat("peak")

    def _stat(self, name: str) -> int:
        # The flat form of the same takes ten times as long; either is empty before the first use of the device.
        stats = torch.cuda.memory_stats_as_nested_dict(self.index)
        return int(stats["allocated_bytes"]["all"][name]) if stats else 0


@contextmanager
def reserving_no_more() -> Iterator[None]:
    """Give back what the block reserved on the current CUDA device and no longer uses.

    torch's allocator gives back all that lies idle or nothing.  So nothing is given back if more lay idle before the
    block: that is the program's, which will ask for it again.
    """
    before, idle = _reserved_and_idle()
    try:
        yield
    finally:
        after, _ = _reserved_and_idle()
        if after - before > idle and not torch.cuda.is_current_stream_capturing():
            torch.cuda.empty_cache()


def _reserved_and_idle() -> tuple[int, int]:
    """Bytes that the allocator has of the current device, and those of them that are not in use."""
    if not uses_cuda():
        return 0, 0
    reserved = torch.cuda.memory_reserved()
    return reserved, reserved - torch.cuda.memory_allocated()


def recorded_requests(run: Callable[[], None]) -> list[int]:
    """Sizes in bytes that `run` asks the current CUDA device's allocator for, in their order, as users ask."""
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
    try:
        run()
        traces = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(None)
    return [event["size"] for event in traces if event["action"] == "alloc"]


def device_allocator(values: Iterable[Any]) -> CudaAllocator | None:
    """The allocator of the accelerator that tensors lie on; `None` on a CPU, whose allocator counts nothing.

    Also `None` if they lie on several accelerators: the peak on one says nothing about a step on all.
    """
    devices = {value.device for value in values if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    if len(devices) != 1 or not torch.cuda.is_available():
        return None
    # ``torch.device("cuda")`` has no index and means the current device.
    index: int | None = devices.pop().index
    return CudaAllocator(torch.cuda.current_device() if index is None else index)
