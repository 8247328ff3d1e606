"""Does everything fit into an arena of a given height?  The search over canonical solutions, in compiled loops.

A solution is canonical if its blocks, taken by offset and then by rank, each lie on the floor or on a block taken
before, as low as those leave them.  Any solution can be let down into a canonical one, so blocks are placed in that
order alone, each at the lowest place that the blocks under it leave.  The search turns back

- where a block would lie so high that another, not yet placed, would fit beneath it (dominance);
- where, in some section of time, more is left to place than there is above the lowest place that any of it can have
  (section inference; offsets never fall, so that the last one is such a place, too).

Where the placed blocks cut the rest into parts that share no time, parts are searched one by one, and where one has no
solution, no other choice in its neighbours can help.  The stack of frames:

    frame 0   the whole problem                       parts [0..9)
    frame 1   sections 0..9, has placed one block     parts [0..3) [5..9)    the frame above searches one of them
    frame 2   sections 5..9                           ...

Source: MiniMalloc (Moffitt, ASPLOS 2023): canonical solutions, spatial inference, dominated solutions.  There the
search is recursive, and a part forgets the offset at which it was cut off; here a part goes on from it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from remat_passes.layout.sections import ShortArray
from remat_passes.layout.units import IntArray
from remat_passes.sequences.jit import compiled, inner

BoolArray = npt.NDArray[np.bool_]

NONE, FOUND, LIMIT = 0, 1, 2
"""Answers of `search`: there is no solution; there is one; the limit was reached before either was known."""

# Columns of a frame: its sections; offset and rank of its last choice; marks to which that is undone; its parts; where
# its blocks are written down.
_LO, _HI, _AT, _RANK, _PLACED, _RAISED, _RANKED, _LIFTED, _FIRST_PART, _PART, _LAST_PART = range(11)
_BEGIN, _END = 11, 12


@compiled
def search(
    size: IntArray,
    first: IntArray,
    last: IntArray,
    near_start: IntArray,
    near: ShortArray,
    by_total: bool,
    capacity: int,
    limit: int,
    low: IntArray,
) -> tuple[int, int]:
    """Place all blocks below `capacity`; the answer, and the work: blocks and sections that were looked at.

    Args:
        size: Units of each block, at least 1, in the order of their rank: of equally low blocks, the first is tried
            first.
        first: First section of each block.
        last: One past its last section.
        near_start: Where the blocks that each block meets begin in `near`, and the length of `near`.
        near: The blocks that each block meets.
        by_total: Whether blocks in the fullest sections come first, by what is left when a part is begun.
        capacity: Units of the arena.
        limit: Work after which to give up.
        low: The lowest place that the placed blocks leave to each block; its offset, once it is placed.  All 0 at the
            start.
    """
    n, count = len(size), last.max()
    held_start, held = _blocks_by_section(first, last, count)
    rest = np.zeros(count, np.int64)  # units still to be placed in a section
    joint = np.zeros(count, np.int64)  # blocks still to be placed in a section and in the next one
    total = np.zeros(n, np.int64)  # units to be placed in the fullest section of a block, when its part was begun
    placed = np.zeros(n, np.bool_)
    for i in range(n):
        _count_in(i, 1, size, first, last, rest, joint)
    if rest.max() > capacity:
        return NONE, 0
    order = np.empty(n, np.int64)  # placed blocks
    raised = np.empty((len(near) + 1, 2), np.int64)  # blocks that had to go up, and where they were
    ranked = np.empty((4 * n, 2), np.int64)  # blocks whose rank changed, and what it was
    floor = np.zeros(count, np.int64)  # the lowest place of a block still to be placed in a section
    lifted = np.empty((4 * count, 2), np.int64)  # sections whose floor went up, and where it was
    # Sections whose floor may have gone up; at the end, how many were looked at for it, and how many it is.
    touched = np.empty(count + 2, np.int64)
    num_placed = num_raised = num_ranked = num_lifted = depth = 0
    work = n + len(held)
    parts = np.empty((2 * n + 2, 2), np.int64)
    frames = np.zeros((n + 1, 13), np.int64)
    members = np.empty(2 * n, np.int64)  # blocks of the parts that are open
    members[:n] = np.arange(n)
    frames[0, _END] = n
    frames[0, _AT] = frames[0, _RANK] = -1
    frames[0, _LAST_PART] = _cut(0, count, rest, joint, parts, 0)
    while True:
        # A frame whose parts are all done is a part of the frame below that is done.
        while frames[depth, _PART] == frames[depth, _LAST_PART]:
            if depth == 0:
                return FOUND, work
            depth -= 1
            frames[depth, _PART] += 1
        depth += 1
        frame, below = frames[depth], frames[depth - 1]
        frame[_LO], frame[_HI] = parts[below[_PART]]
        frame[_AT], frame[_RANK] = below[_AT], below[_RANK]
        frame[_BEGIN], frame[_END] = below[_BEGIN], below[_END]
        if depth == 1 or frame[_LO] != below[_LO] or frame[_HI] != below[_HI]:
            if below[_END] + n > len(members):
                members = np.concatenate((members, members))
            _choose(frame, first, last, placed, members)
            work += below[_END] - below[_BEGIN]
            if by_total:
                # With other ranks, all blocks at the last offset are behind the last choice.
                frame[_AT], frame[_RANK] = below[_AT] - 1, -1
                if num_ranked + n > len(ranked):
                    ranked = np.concatenate((ranked, ranked))
                num_ranked = _rank(frame, members, first, last, rest, total, ranked, num_ranked)
        frame[_RANKED] = num_ranked
        frame[_PLACED], frame[_RAISED], frame[_LIFTED] = num_placed, num_raised, num_lifted
        frame[_FIRST_PART] = below[_LAST_PART]
        while True:
            frame = frames[depth]
            block = _next(frame, members, size, placed, low, total)
            if block < 0:
                # Nothing is left to choose here, so the choice below was wrong.
                depth -= 1
                if depth == 0:
                    return NONE, work
            else:
                if work >= limit:
                    return LIMIT, work
                frame[_AT], frame[_RANK] = low[block], block
                order[num_placed], placed[block] = block, True
                num_placed += 1
                _count_in(block, -1, size, first, last, rest, joint)
                more = _raise(
                    block, size, first, last, near_start, near, placed, low, floor, raised[num_raised:], touched
                )
                num_raised += more
                if num_lifted + count > len(lifted):
                    lifted = np.concatenate((lifted, lifted))
                more = _lift(touched, held_start, held, placed, low, rest, floor, lifted[num_lifted:])
                num_lifted += more
                work += frame[_END] - frame[_BEGIN] + frame[_HI] - frame[_LO]
                work += near_start[block + 1] - near_start[block] + touched[-2]
                if _has_room(frame, rest, floor, capacity, touched):
                    break
            frame = frames[depth]
            while num_placed > frame[_PLACED]:
                num_placed -= 1
                placed[order[num_placed]] = False
                _count_in(order[num_placed], 1, size, first, last, rest, joint)
            num_raised = _restore(low, raised, num_raised, frame[_RAISED])
            num_lifted = _restore(floor, lifted, num_lifted, frame[_LIFTED])
            num_ranked = _restore(total, ranked, num_ranked, frame[_RANKED])
        frame[_PART] = frame[_FIRST_PART]
        frame[_LAST_PART] = _cut(frame[_LO], frame[_HI], rest, joint, parts, frame[_FIRST_PART])


@inner
def _blocks_by_section(first: IntArray, last: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """The blocks of each section, one list behind the other: where each list starts, and the lists."""
    start = np.zeros(count + 1, np.int64)
    for i in range(len(first)):
        for s in range(first[i], last[i]):
            start[s + 1] += 1
    for s in range(count):
        start[s + 1] += start[s]
    fill = start[:-1].copy()
    held = np.empty(start[count], np.int64)
    for i in range(len(first)):
        for s in range(first[i], last[i]):
            held[fill[s]] = i
            fill[s] += 1
    return start, held


@inner
def _count_in(
    block: int, sign: int, size: IntArray, first: IntArray, last: IntArray, rest: IntArray, joint: IntArray
) -> None:
    """Count a block among those still to be placed (1), or no longer (-1)."""
    for s in range(first[block], last[block]):
        rest[s] += sign * size[block]
        if s + 1 < last[block]:
            joint[s] += sign


@inner
def _restore(values: IntArray, trail: IntArray, top: int, mark: int) -> int:
    """Give values back what they were before, latest first, down to a mark in their trail; the mark."""
    for k in range(top - 1, mark - 1, -1):
        values[trail[k, 0]] = trail[k, 1]
    return mark


@inner
def _choose(frame: IntArray, first: IntArray, last: IntArray, placed: BoolArray, members: IntArray) -> None:
    """Write the blocks of a part down behind those of the frame below, in the order of their rank."""
    begin, end = frame[_BEGIN], frame[_END]
    top = end
    for k in range(begin, end):
        i = members[k]
        if not placed[i] and first[i] >= frame[_LO] and last[i] <= frame[_HI]:
            members[top] = i
            top += 1
    frame[_BEGIN], frame[_END] = end, top


@inner
def _rank(
    frame: IntArray,
    members: IntArray,
    first: IntArray,
    last: IntArray,
    rest: IntArray,
    total: IntArray,
    ranked: IntArray,
    num_ranked: int,
) -> int:
    """Rank the blocks of a part by what is left to place beside them; the new number of blocks that were ranked."""
    for i in members[frame[_BEGIN] : frame[_END]]:
        ranked[num_ranked, 0], ranked[num_ranked, 1] = i, total[i]
        num_ranked += 1
        total[i] = rest[first[i] : last[i]].max()
    return num_ranked


@inner
def _next(frame: IntArray, members: IntArray, size: IntArray, placed: BoolArray, low: IntArray, total: IntArray) -> int:
    """The lowest block of a frame, by rank of equals, behind the one that it chose last; -1 if there is none."""
    at, rank = frame[_AT], frame[_RANK]
    best, ceiling = -1, np.int64(1) << 62
    for i in members[frame[_BEGIN] : frame[_END]]:
        if not placed[i]:
            ceiling = min(ceiling, low[i] + size[i])
            behind = low[i] > at
            if low[i] == at and rank >= 0:
                behind = total[i] < total[rank] or (total[i] == total[rank] and i > rank)
            if behind and (best < 0 or low[i] < low[best] or (low[i] == low[best] and total[i] > total[best])):
                best = i
    # At the ceiling or above it, the block that gives the ceiling would fit beneath.
    return best if best >= 0 and low[best] < ceiling else -1


@inner
def _raise(
    block: int,
    size: IntArray,
    first: IntArray,
    last: IntArray,
    near_start: IntArray,
    near: ShortArray,
    placed: BoolArray,
    low: IntArray,
    floor: IntArray,
    raised: IntArray,
    touched: IntArray,
) -> int:
    """Move up what meets a block that was placed; the number of blocks that moved.  Sections of which any was the
    lowest block are `touched`; for now, their floor is negative."""
    top, num_raised, num_touched, looked = low[block] + size[block], 0, 0, 0
    for s in range(first[block], last[block]):
        if floor[s] == low[block]:
            floor[s] = -1 - floor[s]
            touched[num_touched] = s
            num_touched += 1
    for k in range(near_start[block], near_start[block + 1]):
        i = near[k]
        if not placed[i] and low[i] < top:
            looked += last[i] - first[i]
            for s in range(first[i], last[i]):
                if floor[s] == low[i]:
                    floor[s] = -1 - floor[s]
                    touched[num_touched] = s
                    num_touched += 1
            raised[num_raised, 0], raised[num_raised, 1] = i, low[i]
            num_raised += 1
            low[i] = top
    touched[-2], touched[-1] = looked, num_touched
    return num_raised


@inner
def _lift(
    touched: IntArray,
    held_start: IntArray,
    held: IntArray,
    placed: BoolArray,
    low: IntArray,
    rest: IntArray,
    floor: IntArray,
    lifted: IntArray,
) -> int:
    """Find the new floor of the sections that were touched; the number of those whose floor went up."""
    num_lifted = 0
    for k in range(touched[-1]):
        s = touched[k]
        before = -1 - floor[s]
        lowest = np.int64(1) << 62
        if rest[s]:
            for j in range(held_start[s], held_start[s + 1]):
                i = held[j]
                if not placed[i] and low[i] < lowest:
                    lowest = low[i]
                    # No block is lower than the lowest was.
                    if lowest == before:
                        break
        else:
            lowest = before
        floor[s] = lowest
        if lowest > before:
            lifted[num_lifted, 0], lifted[num_lifted, 1] = s, before
            num_lifted += 1
    return num_lifted


@inner
def _has_room(frame: IntArray, rest: IntArray, floor: IntArray, capacity: int, touched: IntArray) -> bool:
    """Whether what is still to be placed may fit, by what is known of each section."""
    for s in range(frame[_LO], frame[_HI]):
        if rest[s] and frame[_AT] + rest[s] > capacity:
            return False
    for k in range(touched[-1]):
        s = touched[k]
        if rest[s] and floor[s] + rest[s] > capacity:
            return False
    return True


@inner
def _cut(lo: int, hi: int, rest: IntArray, joint: IntArray, parts: IntArray, top: int) -> int:
    """Write down, from `top` on, the parts of a range of sections that share no unplaced block; where they end."""
    start = lo
    for s in range(lo, hi):
        if s + 1 == hi or joint[s] == 0:
            # A part of one section may be empty; no other is.
            if rest[s]:
                parts[top, 0], parts[top, 1] = start, s + 1
                top += 1
            start = s + 1
    return top
