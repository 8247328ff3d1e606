"""Has emitted graphs lay their values at planned offsets of a few tensors, unless that takes more memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_compiler.arena.placing import Placement, SamePlaces
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.placeable import PlaceableStep
from remat_compiler.ir.arenas import Allocations, ArenaFigures, Arenas
from remat_compiler.log import logger_of
from remat_compiler.simulate.arenas import arena_defects, live_bytes, trace_with
from remat_compiler.simulate.reserved import AllocationTrace, taken_bytes
from remat_compiler.units import format_bytes
from remat_passes.registry import choose_arenas

logger = logger_of(__name__)

_HOLDING_ON = {
    "_c10d_functional": "collectives, which read values after the graph is done with them",
    "resize_storage_bytes": "storages that are resized, which an arena's must not be",
    "torch.ops.streams": "streams of its own, which use values after the graph is done with them",
}
"""What emitted code must not have, since the memory of a value then belongs to others too early, or not at all."""

PlacedRun = Callable[[Mapping[bool, Placement]], DryRun]
"""The dry run of the same graphs with their allocations in arenas."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Arenas for a pair of graphs.

    Attributes:
        check: The check with them.
        step: What of the step may lie in arenas.
        arenas: The arenas.
        placements: Places of the allocations of the backward (`True`) and of the forward.
    """

    check: DryRun
    step: PlaceableStep
    arenas: Arenas
    placements: Mapping[bool, Placement]


def place_in_arenas(check: DryRun, graphs: Sequence[EmittedGraph], run: PlacedRun, others_run_between: bool) -> DryRun:
    """The check of the graphs with arenas, which they have from now on; `check`, with a note, if these would take more.

    Args:
        check: The check of the graphs without arenas.
        graphs: The graphs.
        run: Runs them with arenas.
        others_run_between: Whether other graphs run between forward and backward, so that what is held then counts.
    """
    placed = planned_arenas(check, (), graphs, run, others_run_between)
    if isinstance(placed, str):
        return without_arenas(check, placed)
    for graph in graphs:
        placement = placed.placements.get(graph.is_backward)
        if graph.placed is not None and placement is not None:
            graph.placed.places = SamePlaces(placement)
    return placed.check


def planned_arenas(
    check: DryRun,
    smaller: Sequence[AllocationTrace],
    graphs: Sequence[EmittedGraph],
    run: PlacedRun,
    others_run_between: bool,
) -> Placed | str:
    """Arenas with which the step peaks no higher, and less is reserved for it; else the reason why there are none.

    Args:
        check: The check of the graphs without arenas.
        smaller: What the step allocates at smaller sizes, if its sizes change.
        graphs: The graphs.
        run: Runs them with arenas.
        others_run_between: Whether other graphs run between forward and backward, so that what is held then counts.
    """
    step = check.allocations
    if step is None or check.trace is None:
        return check.unknown or "the step is not one forward and one backward graph"
    for graph in graphs:
        for text, why in _HOLDING_ON.items():
            if text in graph.source:
                return f"the graph has {why}"
    # Emitted code switches between devices, and asks each for memory by the same function.
    if step.devices > 1:
        return "its values lie on several devices, and an arena lies on one"
    expandable = segments_expand()
    asked = _with_pause_between_phases(step.allocations, others_run_between)
    arenas = choose_arenas(asked, [check.trace, *smaller], expandable)
    if not arenas.sizes:
        return "none of the arenas that were tried lowers what is reserved"
    defects = arena_defects(step.allocations, arenas)
    if defects:
        logger.warning("arenas that were planned have defects: %s; please report this", "; ".join(defects[:3]))
        return "those that were planned have defects"
    placements = step.placements(arenas)
    placed = run(placements)
    if placed.unknown or placed.trace is None:
        return placed.unknown
    before = taken_bytes([check.trace, *smaller], expandable)
    after = taken_bytes([placed.trace, *(trace_with(one, step.allocations, arenas) for one in smaller)], expandable)
    # The peak is what the budget is about; what is reserved is what arenas are for.
    if _takes_more(placed, check, others_run_between) or after > before:
        peaks = f"the peak is {format_bytes(placed.peak_bytes)} in place of {format_bytes(check.peak_bytes)}"
        reserved = f"{format_bytes(after)} are reserved in place of {format_bytes(before)}"
        return f"with {len(arenas.sizes)} of them {peaks}, and {reserved}"
    held = sum(b.size_bytes for b, arena in zip(step.allocations.blocks, arenas.arena_of) if arena >= 0)
    plain_bytes = taken_bytes([check.trace], expandable)
    figures = ArenaFigures(arenas.sizes, 100.0 * held / max(step.all_bytes, 1), plain_bytes)
    return Placed(replace(placed, arenas=figures, between_bytes=check.between_bytes), step, arenas, placements)


def _with_pause_between_phases(step: Allocations, others_run_between: bool) -> Allocations:
    """The step as if forward and backward peaked at one height, so that arenas lift neither.

    In a step of several graphs other memory is added to each of them, and to what is held between them.
    """
    total, other = live_bytes(step), list(step.other_bytes)
    for moments in (slice(0, step.boundary), slice(step.boundary, len(other))):
        room = int(total.max(initial=0) - total[moments].max(initial=0))
        other[moments] = [size + room for size in other[moments]]
    if others_run_between and step.boundary < len(other):
        other[step.boundary] = step.other_bytes[step.boundary] + int(total.max() - total[step.boundary])
    return replace(step, other_bytes=tuple(other))


def _takes_more(placed: DryRun, check: DryRun, others_run_between: bool) -> bool:
    """Whether forward or backward peak higher with arenas, or more is held between them where that counts."""
    before, after = check.memory, placed.memory
    if before is None or after is None:
        return True
    held = others_run_between and after.held_bytes > before.held_bytes
    return held or after.forward_bytes > before.forward_bytes or after.backward_bytes > before.backward_bytes


def without_arenas(check: DryRun, reason: str) -> DryRun:
    """`check` with a note for the report."""
    note = f'layout="planned": no arenas, since {reason}'
    logger.info(note)
    return replace(check, notes=(*check.notes, note))
