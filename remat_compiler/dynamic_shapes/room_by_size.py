"""The room off the device for the calls of a graph whose sizes change: as much as the largest call so far moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.ir.plan import in_pages
from remat_compiler.offload.operators import OFFLOAD
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Reservation, store_of


@dataclass(eq=False)
class SharedRoom:
    """Room for the variants of one graph, of which one runs a call.

    Attributes:
        place: Where it is.
        limit_bytes: The most that a call may move, and all calls under way at the same time: `offload_budget`.
        pinned: Whether a GPU copies to and from it.
    """

    place: Place
    limit_bytes: int
    pinned: bool
    _held: Reservation | None = None

    def grow(self, size_bytes: int) -> None:
        """Make room for calls that move `size_bytes`.

        Raises:
            OffloadError: There is no such room; what there was stays.
        """
        # On paper there is no memory to pin, and nothing is copied.
        if not size_bytes or torch_compat.is_on_paper():
            return
        if self._held is None:
            self._held = store_of(self.place, self.pinned).reserve(size_bytes, self.limit_bytes)
        elif size_bytes > self._held.size_bytes:
            self._held.store.resize(self._held, size_bytes, self.limit_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class MovedBySize:
    """What one variant moves off the device, by the sizes of a call.

    Attributes:
        room: Where it goes.
        value_bytes: Bytes of each value, as a number or by symbols.
        names: The symbols, in the order of the sizes.
    """

    room: SharedRoom
    value_bytes: tuple[Any, ...]
    names: tuple[str, ...]
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)

    @staticmethod
    def of(attempt: Attempt, room: SharedRoom | None, names: Sequence[str]) -> MovedBySize | None:
        """What `attempt` moves; `None` if that is nothing."""
        if room is None:
            return None
        graphs = [graph for one in attempt.partitions for graph in (one.graphs.forward, one.graphs.backward)]
        moving = [node for one in graphs for node in one.graph.find_nodes(op="call_function", target=OFFLOAD)]
        values = [node.args[0].meta["val"] for node in moving]
        value_bytes = tuple(one.numel() * one.element_size() for one in values)
        return MovedBySize(room, value_bytes, tuple(names)) if values else None

    def bytes_at(self, sizes: Sequence[int]) -> int:
        """Bytes in whole pages that a call at these sizes moves."""
        key = tuple(sizes)
        if key not in self._known:
            with torch_compat.sizes_at(dict(zip(self.names, key))):
                self._known[key] = sum(in_pages(max(torch_compat.size_hint(one), 1)) for one in self.value_bytes)
        return self._known[key]

    def is_within(self, sizes: Sequence[int]) -> bool:
        """Whether a call at these sizes moves no more than it may."""
        return self.bytes_at(sizes) <= self.room.limit_bytes
