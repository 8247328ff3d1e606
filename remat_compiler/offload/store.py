"""The memory of one place, in pieces: reserved when a plan is compiled, given out and taken back while steps run."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from remat_compiler.errors import OffloadError
from remat_compiler.ir.plan import in_pages
from remat_compiler.offload.arena import Arena
from remat_compiler.offload.direct_file import DirectFile, GpuFile
from remat_compiler.offload.memory import DiskMemory, HostMemory, Memory
from remat_compiler.offload.place import Place
from remat_compiler.units import format_bytes


@dataclass(slots=True, eq=False)
class _Piece:
    memory: Memory
    arena: Arena


@dataclass(eq=False)
class Slot:
    """Bytes of a piece, which return to it with the last reference to this object.

    Attributes:
        memory: The piece's memory.
        offset: Its first byte.
        size_bytes: Its length.
    """

    memory: Memory
    offset: int
    size_bytes: int


@dataclass(eq=False)
class Reservation:
    """Room for one compiled step, kept for as long as this object lives.

    Attributes:
        store: Where it is.
        size_bytes: What one step moves, in whole pages.
        limit_bytes: The most that steps under way at the same time may take: the user's `offload_budget`.
    """

    store: Store
    size_bytes: int
    limit_bytes: int


@dataclass(slots=True, eq=False)
class Store:
    """The memory of one place.

    Attributes:
        make: Makes a piece of memory of a given size; raises `OffloadError` if it cannot.
    """

    make: Callable[[int], Memory]
    _pieces: list[_Piece] = field(default_factory=list)
    _reserved: dict[int, tuple[int, int]] = field(default_factory=dict)
    _returned: deque[Callable[[], None]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held_bytes(self) -> int:
        """Bytes that this process has there, in use or reserved."""
        with self._changing():
            return self._held()

    @property
    def taken_bytes(self) -> int:
        """Bytes in use."""
        with self._changing():
            return self._taken()

    def reserve(self, size_bytes: int, limit_bytes: int) -> Reservation:
        """Room for steps that move `size_bytes` each.

        Raises:
            OffloadError: There is no such room.
        """
        made = Reservation(self, size_bytes, limit_bytes)
        key = id(made)
        with self._changing():
            self._reserved[key] = size_bytes, limit_bytes
            try:
                missing = sum(size for size, _ in self._reserved.values()) - self._held()
                if missing > 0:
                    self._add_piece(missing)
            except OffloadError:
                del self._reserved[key]
                raise
        weakref.finalize(made, self._return, lambda: self._release(key))
        return made

    def resize(self, room: Reservation, size_bytes: int, limit_bytes: int) -> None:
        """Give `room` another size.

        Raises:
            OffloadError: There is no such room; it is as before.
        """
        key, before = id(room), (room.size_bytes, room.limit_bytes)
        with self._changing():
            self._reserved[key] = size_bytes, limit_bytes
            try:
                missing = sum(size for size, _ in self._reserved.values()) - self._held()
                if missing > 0:
                    self._add_in_one_piece(size_bytes, missing)
            except OffloadError:
                self._reserved[key] = before
                raise
            room.size_bytes, room.limit_bytes = size_bytes, limit_bytes
            self._shrink()

    def take(self, size_bytes: int) -> Slot:
        """Room for one value.

        Raises:
            OffloadError: Steps under way have taken all that they may, or there is no more memory.
        """
        with self._changing():
            for piece in self._pieces:
                offset = piece.arena.take(size_bytes)
                if offset is not None:
                    return self._slot(piece, offset, size_bytes)
            limits = [limit for _, limit in self._reserved.values()]
            if limits and self._held() + in_pages(size_bytes) > sum(limits):
                raise OffloadError(
                    f"steps under way at the same time have offloaded {format_bytes(self._taken())}, and "
                    f"{format_bytes(size_bytes)} more would exceed offload_budget={format_bytes(sum(limits))}; raise "
                    f"it, or run the backward of one step before the forward of the next"
                )
            piece = self._add_piece(in_pages(size_bytes))
            return self._slot(piece, piece.arena.take(size_bytes) or 0, size_bytes)

    def _slot(self, piece: _Piece, offset: int, size_bytes: int) -> Slot:
        slot = Slot(piece.memory, offset, size_bytes)
        weakref.finalize(slot, self._return, lambda: self._give_back(piece, offset, size_bytes))
        return slot

    def _add_piece(self, size_bytes: int) -> _Piece:
        piece = _Piece(self.make(size_bytes), Arena(size_bytes))
        self._pieces.append(piece)
        return piece

    def _add_in_one_piece(self, size_bytes: int, missing: int) -> None:
        """Add a piece of `size_bytes`, or of what is missing to it where there is not so much beside the others."""
        # A value may be larger than each of two pieces that together have room for it.
        try:
            self._add_piece(size_bytes)
        except OffloadError:
            self._add_piece(missing)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; what was returned before counts."""
        with self._lock:
            self._settle()
            yield
        # Returned meanwhile, by the garbage collector of this thread or by others.
        self._try_to_settle()

    def _return(self, change: Callable[[], None]) -> None:
        """Note that something is returned.  Garbage collection may call this anywhere, also while the lock is held."""
        self._returned.append(change)
        self._try_to_settle()

    def _try_to_settle(self) -> None:
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._returned:
            self._returned.popleft()()

    def _give_back(self, piece: _Piece, offset: int, size_bytes: int) -> None:
        piece.arena.give_back(offset, size_bytes)
        self._shrink()

    def _release(self, key: int) -> None:
        del self._reserved[key]
        self._shrink()

    def _held(self) -> int:
        return sum(piece.arena.size_bytes for piece in self._pieces)

    def _taken(self) -> int:
        return sum(piece.arena.taken_bytes for piece in self._pieces)

    def _shrink(self) -> None:
        """Close pieces that are neither in use nor needed by a reservation, the newest first."""
        needed = sum(size for size, _ in self._reserved.values())
        for piece in self._pieces[::-1]:
            size_bytes = piece.arena.size_bytes
            if not piece.arena.taken_bytes and self._held() - size_bytes >= needed:
                self._pieces.remove(piece)
                piece.memory.close()


_stores: dict[tuple[Place, bool], Store] = {}
_lock = threading.Lock()


def store_of(place: Place, pinned: bool) -> Store:
    """The store of `place` in this process.

    Args:
        place: The place.
        pinned: Whether a GPU copies to and from it.
    """
    with _lock:
        known = _stores.get((place, pinned))
        if known is None:
            known = _stores[place, pinned] = Store(lambda size_bytes: _memory(place, pinned, size_bytes))
        return known


def held_on_disk(folder: Path) -> int:
    """Bytes that this process has in files of `folder`."""
    with _lock:
        stores = [store for (place, _), store in _stores.items() if place.folder == folder]
    return sum(store.held_bytes for store in stores)


def _memory(place: Place, pinned: bool, size_bytes: int) -> Memory:
    if place.folder is None:
        return HostMemory(size_bytes, pinned)
    kind = GpuFile if pinned else DirectFile if place.direct else DiskMemory
    return kind(size_bytes, place.folder)
