"""Choose what is moved off the device so that a given sequence of operators fits.

Of the gaps that cover the step highest above the budget, those are taken that cover most of what is above it, with the
most time to spare beside their copies: mostly what is made first and read last.  A gap that turns out not to be needed
is given back.
"""

from __future__ import annotations

import numpy as np

from remat_compiler.ir.plan import in_pages
from remat_compiler.ir.problem import Link
from remat_compiler.simulate.arrays import IntArray
from remat_passes.transfers.gaps import Gaps

NEARLY = 0.9
"""Gaps that cover at least this part of what the best gap covers are compared by the time that they have to spare."""


def insert_offload(
    gaps: Gaps, live_bytes: IntArray, begins_ns: IntArray, budget_bytes: int, room_bytes: int, link: Link
) -> list[int]:
    """Numbers of the gaps to move in, ascending; what remains above the budget no gap covers, or there is no room.

    Args:
        gaps: Gaps of the plan.
        live_bytes: Live bytes at each step.
        begins_ns: When each step begins.
        budget_bytes: Bytes that may be alive at each step.
        room_bytes: Bytes that may be off the device.
        link: The way there.
    """
    live = live_bytes.copy()
    over = live > budget_bytes
    sizes = gaps.size_bytes.tolist()
    pages = np.array([in_pages(size) for size in sizes], np.int64)
    copies_ns = np.array([link.out_ns(size) + link.back_ns(size) for size in sizes], np.int64)
    spare_ns = begins_ns[gaps.read] - begins_ns[gaps.first] - copies_ns
    open_ = np.ones(len(gaps.size_bytes), np.bool_)
    chosen: list[int] = []
    while over.any():
        step = int(np.argmax(live))
        able = open_ & (gaps.first <= step) & (step < gaps.read) & (pages <= room_bytes)
        which = np.flatnonzero(able)
        if not len(which):
            # Nothing helps at this step, so it stays above; the others may still be brought down.
            live[step] = budget_bytes
            over[step] = False
            continue
        covered = np.concatenate(([0], np.cumsum(over)))
        cover = covered[gaps.read[which]] - covered[gaps.first[which]]
        good = which[cover >= NEARLY * cover.max()]
        wasted = np.maximum(gaps.size_bytes[good] - int(live.max() - budget_bytes), 0)
        best = int(good[np.lexsort((good, -spare_ns[good], wasted, spare_ns[good] < 0))[0]])
        chosen.append(best)
        open_[best] = False
        room_bytes -= int(pages[best])
        inside = slice(int(gaps.first[best]), int(gaps.read[best]))
        live[inside] -= gaps.size_bytes[best]
        over[inside] = live[inside] > budget_bytes
    return _needed(gaps, live_bytes, budget_bytes, chosen)


def _needed(gaps: Gaps, live_bytes: IntArray, budget_bytes: int, chosen: list[int]) -> list[int]:
    """`chosen` without gaps that are not needed, the last ones first."""
    live = gaps.moved_in(chosen, live_bytes)
    # Steps that stay above the budget whatever is moved must not get higher.
    limit = np.maximum(live, budget_bytes)
    kept = []
    for gap in chosen[::-1]:
        inside = slice(int(gaps.first[gap]), int(gaps.read[gap]))
        back = live[inside] + gaps.size_bytes[gap]
        if (back <= limit[inside]).all():
            live[inside] = back
        else:
            kept.append(gap)
    return sorted(kept)
