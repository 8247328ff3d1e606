"""When what is moved gives up its memory, and when it takes memory again: as the copies need it and the budget allows.

A value leaves as soon as it may, and its memory is waited for as late as the budget allows, but not before the copy is
out.  It comes back as late as its copy still hides behind the step, which is as early as it must, and later if there is
no memory for it yet.
"""

from __future__ import annotations

import numpy as np

from remat_compiler.ir.problem import Link
from remat_compiler.simulate.arrays import IntArray
from remat_passes.transfers.gaps import Gaps


def leave_and_return(
    gaps: Gaps,
    chosen: list[int],
    live_bytes: IntArray,
    begins_ns: IntArray,
    boundary: int,
    budget_bytes: int,
    link: Link,
) -> list[tuple[int, int]]:
    """For each chosen gap, the step from which its memory is free, and that before which it is taken again.

    Args:
        gaps: Gaps of the plan.
        chosen: Those in which something is moved.
        live_bytes: Live bytes at each step, with all of them moved for as long as they can be.
        begins_ns: When each step begins, and at last when the step ends.
        boundary: First step of the backward.
        budget_bytes: Bytes that may be alive at each step.
        link: The way to the tier.
    """
    live = live_bytes.copy()
    leave = _leave(gaps, chosen, live, begins_ns, boundary, budget_bytes, link)
    back = _return(gaps, chosen, leave, live, begins_ns, boundary, budget_bytes, link)
    return [(leave[gap], back[gap]) for gap in chosen]


def _leave(
    gaps: Gaps,
    chosen: list[int],
    live: IntArray,
    begins_ns: IntArray,
    boundary: int,
    budget_bytes: int,
    link: Link,
) -> dict[int, int]:
    """The step from which the memory of each gap is free; `live` has what is kept until then."""
    found, free_ns = {}, 0
    # In the order of the queue.
    for gap in sorted(chosen, key=lambda gap: (int(gaps.made[gap]), int(gaps.first[gap]))):
        size, first, read = int(gaps.size_bytes[gap]), int(gaps.first[gap]), int(gaps.read[gap])
        free_ns = max(free_ns, int(begins_ns[gaps.made[gap] + 1])) + link.out_ns(size)
        done = int(np.searchsorted(begins_ns, free_ns))
        # The forward waits for its copies at its end; the last step of the gap stays for the way back.
        latest = min(done, read - 1, boundary if first <= boundary else read - 1)
        above = np.flatnonzero(live[first:latest] + size > budget_bytes)
        step = first + int(above[0]) if len(above) else max(latest, first)
        live[first:step] += size
        found[gap] = step
        # What waits here makes all later steps late, by as much as the copy was.
        free_ns = max(free_ns, int(begins_ns[step]))
    return found


def _return(
    gaps: Gaps,
    chosen: list[int],
    leave: dict[int, int],
    live: IntArray,
    begins_ns: IntArray,
    boundary: int,
    budget_bytes: int,
    link: Link,
) -> dict[int, int]:
    """The step before which memory is taken again for each gap; `live` is raised by it."""
    found, need_ns = {}, 2**62
    # From the end: the copy before must be done when the next one has to begin.
    for gap in sorted(chosen, key=lambda gap: (-int(gaps.read[gap]), gap)):
        size, read, out = int(gaps.size_bytes[gap]), int(gaps.read[gap]), leave[gap]
        need_ns = min(need_ns, int(begins_ns[read])) - link.back_ns(size)
        step = int(np.searchsorted(begins_ns, need_ns, side="right")) - 1
        lowest = max(out + 1, boundary if read >= boundary else 0)
        step = min(max(step, lowest), read)
        above = np.flatnonzero(live[step:read] + size > budget_bytes)
        if len(above):
            step += int(above[-1]) + 1
        live[step:read] += size
        found[gap] = step
        need_ns = min(need_ns, int(begins_ns[step]))
    return found
