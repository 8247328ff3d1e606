"""Copies that run beside the step: by a few threads for each direction on a CPU, by a stream for each on a GPU.

    out     begins once what was computed before is there, and reads the value; `wait` before its memory is given up
    back    begins once its value is out and all that used the target's memory before has run; `wait` before it is read

A copy holds the value, or the target, until it is waited for or ends, so that a step that breaks off never frees memory
under a copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from remat_compiler.errors import OffloadError
from remat_compiler.offload.memory import ByteArray, HostMemory
from remat_compiler.offload.store import Slot


class Copy(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """What runs next on the device finds the copy done; raises `OffloadError` if it failed."""


PIECE_BYTES = 4 * 2**20
"""What one thread copies at a time; whole pages, and so much that handing it out does not count."""
_MOST_THREADS = 4


class ThreadCopy:
    """A copy by threads, each of which takes the next piece of it that nobody has.

    Pieces are taken in order, so of two copies in one direction the one that was begun first also ends first.

    Args:
        slot: Where the value is off the device.
        array: The bytes of the value or of the target: an array, or a tensor on a GPU.
        back: Direction, which has threads of its own.
        ready: Returns when the copy may begin.
    """

    def __init__(
        self, slot: Slot, array: ByteArray | Tensor, back: bool, ready: Callable[[], None] = lambda: None
    ) -> None:
        threads = _threads(os.getpid(), back, slot.memory.waits)
        starts = range(0, max(len(array), 1), PIECE_BYTES)
        self._pieces: list[Future[None]] = [
            threads.submit(_copy, [slot, array[start : start + PIECE_BYTES]], start, back, ready) for start in starts
        ]

    def wait(self) -> None:
        """Block until the copy is done."""
        pieces, self._pieces = self._pieces, []
        # Even if one fails: the memory is given up when this returns or raises, and no thread may use it then.
        wait(pieces)
        for piece in pieces:
            piece.result()


class StreamCopy:
    """A copy by a stream of the GPU.

    Args:
        slot: Where the value is off the device.
        work: Starts the copy, from or to the slot as a tensor, on the current stream.
        tensor: The value or the target, on the GPU.
        back: Direction, which has a stream of its own.
        after: What must be done before, besides what the current stream was given.
    """

    def __init__(
        self, slot: Slot, work: Callable[[Tensor], None], tensor: Tensor, back: bool, after: StreamCopy | None = None
    ) -> None:
        if not isinstance(slot.memory, HostMemory):
            raise OffloadError(f"streams of {tensor.device} copy to and from host memory only")
        pinned = torch.from_numpy(slot.memory.bytes[slot.offset : slot.offset + slot.size_bytes])
        self._stream = _stream(tensor.device, back)
        # The value is computed, and who used the target's memory before has run.
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        if after is not None:
            self._stream.wait_event(after.done)
        with torch.cuda.stream(self._stream):
            work(pinned)
            self.done: torch.cuda.Event = self._stream.record_event()
        slot.memory.copied_by(self._stream, self.done)
        self._tensor: Tensor | None = tensor

    def wait(self) -> None:
        """The current stream goes on when the copy is done."""
        if self._tensor is not None:
            torch.cuda.current_stream(self._tensor.device).wait_event(self.done)
            self._tensor = None

    def __del__(self) -> None:
        # Nobody waited: the allocator must not give the memory to another before the copy is done.
        if self._tensor is not None:
            self._tensor.record_stream(self._stream)


def copy_out(flat: Tensor, slot: Slot) -> Copy:
    """Begin to copy the `flat_bytes` of a value to `slot`, which must have room for them."""
    if flat.device.type == "cpu":
        return ThreadCopy(slot, flat.numpy(), back=False)
    if not isinstance(slot.memory, HostMemory):
        return ThreadCopy(slot, flat, back=False, ready=_computed(flat.device))
    return StreamCopy(slot, lambda pinned: _copy_tensor(pinned, flat), flat, back=False)


def copy_back(slot: Slot, target: Tensor, out: Copy) -> Copy:
    """Begin to fill `target`, which has the layout of the value, from `slot`, once `out` is done."""
    flat = flat_bytes(target)
    if isinstance(out, StreamCopy):
        return StreamCopy(slot, lambda pinned: _copy_tensor(flat, pinned), flat, back=True, after=out)
    out.wait()
    if target.is_cuda:
        return ThreadCopy(slot, flat, back=True, ready=_computed(target.device))
    return ThreadCopy(slot, flat.numpy(), back=True)


def flat_bytes(value: Tensor) -> Tensor:
    """The bytes from the first element in memory to the last one, as a view; gaps between elements included."""
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) if value.numel() else 0
    return value.detach().as_strided((extent,), (1,), value.storage_offset()).view(torch.uint8)


def _copy(held: list[Any], start: int, back: bool, ready: Callable[[], None]) -> None:
    """Copy between the slot, from its byte `start` on, and the array that `held` has, and let go of both."""
    slot, array = held
    try:
        ready()
        (slot.memory.read if back else slot.memory.write)(slot.offset + start, array)
    finally:
        # The thread holds on to its arguments until after the copy counts as done, when the graph may free the memory:
        # without this, now and then, a value would live longer than planned.
        held.clear()


def _copy_tensor(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _computed(device: torch.device) -> Callable[[], None]:
    """Waits until all is done that the GPU's current stream was given so far."""
    event = torch.cuda.current_stream(device).record_event()
    return cast("Callable[[], None]", event.synchronize)


@cache
def _threads(process: int, back: bool, waits: bool) -> ThreadPoolExecutor:
    """The threads of one direction; a forked process, to which threads do not carry over, has its own."""
    # Threads that copy take processors from the operators beside them; those that wait for a disk take none.
    number = _MOST_THREADS if waits else min(max((os.cpu_count() or 1) // 2, 1), _MOST_THREADS)
    return ThreadPoolExecutor(number, f"remat-{'back' if back else 'out'}-{process}")


@cache
def _stream(device: torch.device, back: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
