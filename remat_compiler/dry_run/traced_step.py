"""The requests of a step, run on fake tensors, to the allocator, in order, and the blocks that serve them.

torch's caching allocator on CUDA serves a request by a free block that may be larger, and ``max_memory_allocated``
counts whole blocks: a block of its large pool is cut only if more than 1 MiB would be left.  Which block serves a
request follows from all that was asked before, so the model of the allocator (`devices.caching_allocator`) runs the
step; by its segments that expand, blocks are as large as the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.dry_run.storage_tracker import StorageLife
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import AllocationTrace, block_sizes

_STATES = 2
"""Values of an optimizer's state for each parameter: those of Adam."""


class _Sample(Protocol):
    @property
    def workspace_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Served:
    """What serves the allocations of a step.

    Attributes:
        steps: For each of some steps in a row, the bytes of each allocation of the trace as it counts: the first one
            finds an empty cache, later ones the free blocks of those before.
        traced: What was traced.
    """

    steps: tuple[tuple[int, ...], ...]
    traced: TracedStep

    def bytes_of(self, lives: Iterable[StorageLife]) -> int:
        """Bytes of storages as they count in the step in which they take most."""
        known, positions = list(lives), self.traced.positions
        # A storage without bytes is no allocation.
        places = [positions[id(life)] for life in known if id(life) in positions]
        return max(sum(sizes[place] for place in places) for sizes in self.steps)

    def more_at(self, moments: int) -> list[tuple[int, int]]:
        """At each moment: the bytes above those asked for of what is alive, and of what the operator takes inside.

        They are those of the step that takes most at that moment.
        """
        return [max(of_steps, key=sum) for of_steps in zip(*(self._more_at(sizes, moments) for sizes in self.steps))]

    def _more_at(self, sizes: tuple[int, ...], moments: int) -> list[tuple[int, int]]:
        change, inside = [0] * (moments + 1), [0] * moments
        whose = set(self.traced.positions.values())
        for position, (life, size) in enumerate(zip(self.traced.trace.lives, sizes)):
            more = size - life.size_bytes
            if position not in whose:
                inside[life.made] += more
                continue
            change[min(life.made, moments)] += more
            if life.freed is not None:
                change[min(life.freed, moments)] -= more
        return list(zip(accumulate(change), inside))


@dataclass(frozen=True, slots=True)
class TracedStep:
    """What a step asks for.

    Attributes:
        trace: All of it, in order.
        positions: By the identity of a storage's life, its position in the trace.
    """

    trace: AllocationTrace
    positions: Mapping[int, int]

    @classmethod
    def of(
        cls,
        alive: Sequence[tuple[StorageLife, int | None]],
        timeline: Sequence[_Sample],
        resident: Sequence[int],
        trained: Sequence[int],
        kept: Sequence[Life] = (),
    ) -> TracedStep:
        """What was seen of a step.

        Args:
            alive: Each storage, and when it was freed.
            timeline: What operators take inside, by moment.
            resident: Sizes of what is there before the step.
            trained: Sizes of what an optimizer keeps a state for.
            kept: What the first step makes, and leaves, besides; see `costs.libraries`.
        """
        own = [(id(life), Life(life.size_bytes, life.made, freed)) for life, freed in alive if life.size_bytes]
        inside = [(0, Life(one.workspace_bytes, i, i + 1)) for i, one in enumerate(timeline) if one.workspace_bytes]
        # Stable, so that what is made at one moment stays in its order, and what an operator takes inside comes last.
        rows = sorted(own + inside, key=lambda row: row[1].made)
        lives = tuple(life for _, life in rows)
        trace = AllocationTrace(tuple(resident), tuple(trained) * _STATES, lives, tuple(kept))
        return cls(trace, {key: position for position, (key, _) in enumerate(rows) if key})

    def as_asked(self) -> Served:
        """Each allocation as large as it is asked for."""
        return Served((tuple(life.size_bytes for life in self.trace.lives),), self)

    def blocks(self) -> Served:
        """Each allocation as large as its block, under the user's setting of the allocator."""
        return Served(block_sizes(self.trace, segments_expand()), self)
