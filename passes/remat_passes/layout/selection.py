"""Which arenas of a step lower what torch's caching allocator reserves for it.

An arena is one large allocation, which fits into fewer gaps than its values would.  So each is tried, the largest
first, in the model of the allocator: it stays if no more is reserved with it, and goes again if it turns out to be of
no use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.simulate.arenas import trace_with
from remat_compiler.simulate.reserved import AllocationTrace, taken_bytes
from remat_passes.layout.grouping import joined

MOST_EVENTS = 120_000
"""Allocations that may be modelled, in all tries: about a second."""


def choose_arenas(step: Allocations, traces: Sequence[AllocationTrace], expandable: bool) -> Arenas:
    """Arenas for `step` under which it peaks no higher, and less is reserved for it; none if there are no such.

    Less is reserved with the state of an optimizer or without, and in neither case more.

    Args:
        step: What may lie in arenas, and the rest.
        traces: All that the step allocates; for a step whose sizes change also what it allocates at smaller ones,
            among which the arenas stay as they are.
        expandable: Whether the allocator's segments expand.
    """
    found = joined(step)
    order = sorted(range(len(found.sizes)), key=lambda arena: -found.sizes[arena])
    plain = best = _taken(traces, expandable)
    chosen: list[int] = []
    left = MOST_EVENTS // max(2 * sum(len(trace.lives) for trace in traces), 1)
    # Once up, once down: an arena that helps others to a place first has to be there.
    for adding in (True, False):
        for arena in [one for one in order if adding or one in chosen]:
            tried = [*chosen, arena] if adding else [one for one in chosen if one != arena]
            if (left := left - 1) < 0:
                break
            arenas = only(found, tried)
            taken = _taken([trace_with(trace, step, arenas) for trace in traces], expandable)
            if taken[0] <= best[0] and taken[1] <= best[1]:
                chosen, best = tried, taken
    return only(found, chosen if best != plain else ())


def _taken(traces: Sequence[AllocationTrace], expandable: bool) -> tuple[int, int]:
    """What is reserved with Adam's state, and without any: the optimizer is not known."""
    without = [replace(trace, state=()) for trace in traces]
    return taken_bytes(traces, expandable), taken_bytes(without, expandable)


def only(arenas: Arenas, chosen: Collection[int]) -> Arenas:
    """`arenas` without those that are not chosen, whose values are by themselves."""
    number = {arena: i for i, arena in enumerate(sorted(chosen))}
    arena_of = tuple(number.get(arena, -1) for arena in arenas.arena_of)
    offsets = tuple(0 if arena < 0 else offset for arena, offset in zip(arena_of, arenas.offsets))
    return Arenas(tuple(arenas.sizes[arena] for arena in sorted(number)), arena_of, offsets)
