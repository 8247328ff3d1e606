"""What torch's caching allocator reserves for a step: its live bytes, and what lies in pieces between them.

Allocations of steps come in the order in which emitted code makes them, so the model of the allocator (`devices`) sees
what the allocator would see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from remat_compiler.devices.blocks import Block
from remat_compiler.devices.caching_allocator import CachingAllocator, OutOfMemory
from remat_compiler.devices.expandable_segments import ExpandableAllocator
from remat_compiler.simulate.lives import Life

_UNLIMITED_BYTES = 2**62
_STEPS = 3


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """All that a step allocates, and what is there before it.

    Attributes:
        resident: Sizes of what is allocated before the first step: parameters, buffers, inputs.
        state: Sizes of the optimizer's state, which exists from the end of the first step on.
        lives: What one step allocates, in order.
        kept: What the first step allocates besides, and leaves: workspaces of libraries.
    """

    resident: tuple[int, ...]
    state: tuple[int, ...]
    lives: tuple[Life, ...]
    kept: tuple[Life, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservedFigures:
    """What the allocator takes for a step, on top of what is resident and of the optimizer's state.

    Attributes:
        allocated_bytes: Most in use at once during a step above what is in use as it begins, in blocks.
        reserved_bytes: Most that it reserves, with plain segments.
        expandable_bytes: The same with segments that expand.
    """

    allocated_bytes: int
    reserved_bytes: int
    expandable_bytes: int

    def of(self, expandable: bool) -> int:
        """What it reserves with either kind of segments."""
        return self.expandable_bytes if expandable else self.reserved_bytes


@dataclass(frozen=True, slots=True)
class InUse:
    """What blocks in use come to at most, over steps in a row.

    Attributes:
        above_bytes: During a step, above what is in use as it begins.
        all_bytes: With what is in use as it begins: what is resident lies in whole blocks, too.
    """

    above_bytes: int
    all_bytes: int


# Searches, arenas and reports ask about the same few steps.
@lru_cache(maxsize=4)
def reserved_figures(trace: AllocationTrace) -> ReservedFigures:
    """The figures of a step on a device without end."""
    return _figures(trace, [trace.lives] * _STEPS)


def figures_of_steps(resident: Sequence[int], state: Sequence[int], steps: Sequence[Sequence[Life]]) -> ReservedFigures:
    """The figures of steps that one allocator sees in a row, on a device without end.

    Args:
        resident: Sizes of what is there before the first step.
        state: Sizes of the optimizer's state, which exists from the end of the first step on.
        steps: What each step allocates; steps of other lengths allocate other sizes.
    """
    return _figures(AllocationTrace(tuple(resident), tuple(state), ()), steps)


def _figures(beside: AllocationTrace, steps: Sequence[Sequence[Life]]) -> ReservedFigures:
    (in_use, reserved), (_, expandable) = (_taken(beside, steps, one) for one in (False, True))
    return ReservedFigures(in_use.above_bytes, reserved, expandable)


@lru_cache(maxsize=4)
def block_sizes(trace: AllocationTrace, expandable: bool) -> tuple[tuple[int, ...], ...]:
    """For each of some steps in a row, the bytes of the block that serves each life.

    Args:
        trace: The step.
        expandable: Whether segments expand.
    """
    sizes = [[0] * len(trace.lives) for _ in range(_STEPS)]

    def served(step: int, position: int, block: Block) -> None:
        sizes[step][position] = block.size_bytes

    allocator = (ExpandableAllocator if expandable else CachingAllocator)(_UNLIMITED_BYTES)
    run_steps(trace, [trace.lives] * _STEPS, allocator, served)
    return tuple(map(tuple, sizes))


def taken_bytes(traces: Sequence[AllocationTrace], expandable: bool) -> int:
    """What the allocator reserves, with one kind of segments, for steps of other sizes in a row; see `ReservedFigures`.

    Args:
        traces: One step at each size; what is there beside the steps is that of the first.
        expandable: Whether segments expand.
    """
    steps = [trace.lives for trace in traces] * (_STEPS if len(traces) == 1 else 2)
    return _taken(traces[0], steps, expandable)[1]


def _taken(beside: AllocationTrace, steps: Sequence[Sequence[Life]], expandable: bool) -> tuple[InUse, int]:
    """Most bytes in use, and most reserved less what is there anyway."""
    kind = ExpandableAllocator if expandable else CachingAllocator
    allocator, alone = kind(_UNLIMITED_BYTES), kind(_UNLIMITED_BYTES)
    above = max(run_steps(beside, steps, allocator), default=0)
    # What is there anyway counts as this allocator rounds it.
    for size in (*beside.resident, *beside.state, *(one.size_bytes for one in beside.kept)):
        alone.allocate(size)
    return InUse(above, allocator.peak_allocated_bytes), allocator.peak_reserved_bytes - alone.allocated_bytes


def reserved_bytes(trace: AllocationTrace, capacity_bytes: int, *, expandable: bool = False) -> int:
    """Most that the caching allocator reserves over three steps; the optimizer has its state from the first one on.

    An allocator whose device is full gives back what nobody uses before it gives up.  If it gives up all the same, the
    answer is what it would reserve of a device without end, which is more than `capacity_bytes`.

    Args:
        trace: The step.
        capacity_bytes: What the device has for the allocator.
        expandable: Whether its segments expand.
    """
    steps = [trace.lives] * _STEPS
    kind = ExpandableAllocator if expandable else CachingAllocator
    allocator = kind(capacity_bytes)
    try:
        run_steps(trace, steps, allocator)
        return allocator.peak_reserved_bytes
    except OutOfMemory:
        endless = kind(_UNLIMITED_BYTES)
        run_steps(trace, steps, endless)
        return max(endless.peak_reserved_bytes, capacity_bytes + 1)


def in_use(trace: AllocationTrace, *, expandable: bool) -> InUse:
    """What blocks in use come to at most, on a device without end.

    Args:
        trace: The step.
        expandable: Whether segments expand.
    """
    return _taken(trace, [trace.lives] * _STEPS, expandable)[0]


def run_steps(
    beside: AllocationTrace,
    steps: Sequence[Sequence[Life]],
    allocator: CachingAllocator,
    served: Callable[[int, int, Block], None] = lambda step, position, block: None,
) -> list[int]:
    """Run steps in a row over `allocator`; what a step leaves, such as gradients, is freed once it is over.

    Args:
        beside: What is there beside the steps; its own step is none of them.
        steps: What each step allocates.
        allocator: What serves it.
        served: Told of each block, with the number of the step and the position of what it is for.

    Returns:
        For each step, the most bytes of blocks in use above those in use as it begins, and what is kept.

    Raises:
        OutOfMemory: The device is too small.
    """
    for size in beside.resident:
        allocator.allocate(size)
    peaks = []
    for number, known in enumerate(steps):
        blocks: dict[int, Block] = {}
        kept = beside.kept if number == 0 else ()
        before, most = allocator.allocated_bytes, 0
        for is_made, n in _events((*known, *kept)):
            if is_made and n >= len(known):
                before += allocator.allocate(kept[n - len(known)].size_bytes).size_bytes
            elif is_made:
                blocks[n] = allocator.allocate(known[n].size_bytes)
                served(number, n, blocks[n])
                most = max(most, allocator.allocated_bytes - before)
            else:
                allocator.free(blocks.pop(n))
        # The optimizer makes its state while the gradients are there.
        if number == 0:
            for size in beside.state:
                allocator.allocate(size)
        for block in blocks.values():
            allocator.free(block)
        peaks.append(most)
    return peaks


def _events(known: Sequence[Life]) -> list[tuple[int, int]]:
    """What a step does in order: whether it makes (1) or frees (0), and which allocation."""
    made = [(life.made, 1, n) for n, life in enumerate(known)]
    freed = [(life.freed, 0, n) for n, life in enumerate(known) if life.freed is not None]
    # What is freed at a moment is freed before what is made at it.
    return [(is_made, n) for _, is_made, n in sorted(made + freed)]
