"""Order tasks so that few bytes are alive at once: minimum cuts decide, peak by peak, which tasks run before the peak.

*Tasks* make and read values; a value lives from the task that makes it to its last reader.  Take the task at which
most bytes are alive.  Before it may run any set of tasks that is closed under dependencies and holds those of the peak
task; the set with the fewest bytes across its border is a minimum cut:

    order    a b c d [p] e f           p has the peak
    cut      a c     [p] b d e f       the set {a, c} leaves fewest bytes alive at p; ties move the fewest tasks

Both sides are then ordered in the same way on their own, from their highest peaks on, until nothing helps.  That is
tried among the neighbours of the peak first, then farther around it, so that no task moves without need.  If a cut of
all tasks leaves the first peak as it is, no order has a lower one.

Cuts are maximum flows by Dinic's algorithm (Dinitz, 1970).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.max_flow import INFINITE, SINK, SOURCE, source_side
from remat_passes.sequences.profile import BoolArray, IntArray

DISTANCES = (8, 32, 128, 512)
"""How far from the peak tasks may be to be moved: the next distance is tried if the one before does not help."""
MAX_CUTS = 20
"""Most cuts of one neighbourhood."""


class Tasks(NamedTuple):
    """A problem of ordering: tasks ``0 .. n - 1`` and the values between them.

    Attributes:
        own: Bytes that each task needs while it runs, beyond the values.
        size: Bytes of each value.
        maker: Task that makes each value, or -1 if the value exists from the start.
        kept: Whether each value lives to the end.
        start: Readers of value ``v`` are ``readers[start[v]:start[v + 1]]``.
        readers: Tasks that read the values.
        later: With `earlier`: pairs of tasks of which the second runs before the first.
        earlier: See `later`.
        fixed: Tasks that stay where they are, and that no other passes.
        base: Bytes alive throughout.
    """

    own: IntArray
    size: IntArray
    maker: IntArray
    kept: BoolArray
    start: IntArray
    readers: IntArray
    later: IntArray
    earlier: IntArray
    fixed: BoolArray
    base: int


class Arrangement(NamedTuple):
    """An order of tasks.

    Attributes:
        order: Tasks by position.
        place: Position of each task, and -1 at its end.
        made: Position at which each value is made, -1 if it exists from the start.
        last: Position of the last reader of each value, -1 if there is none.
        alive: Bytes alive at each position.
    """

    order: IntArray
    place: IntArray
    made: IntArray
    last: IntArray
    alive: IntArray


@compiled
def arranged(tasks: Tasks, order: IntArray) -> Arrangement:
    """The arrangement of `order`."""
    n, values = len(order), len(tasks.size)
    place = np.full(n + 1, -1, np.int64)  # one more, for makers that are no tasks
    for p in range(n):
        place[order[p]] = p
    made, last = np.empty(values, np.int64), np.full(values, -1, np.int64)
    delta = np.zeros(n + 1, np.int64)
    delta[0] = tasks.base
    for v in range(values):
        made[v] = place[tasks.maker[v]]
        for i in range(tasks.start[v], tasks.start[v + 1]):
            last[v] = max(last[v], place[tasks.readers[i]])
        # A value that nobody reads still lives at the step that makes it.
        end = n if tasks.kept[v] else max(made[v], last[v]) + 1
        delta[max(made[v], 0)] += tasks.size[v]
        delta[end] -= tasks.size[v]
    return Arrangement(order, place, made, last, np.cumsum(delta[:n]) + tasks.own[order])


def lower_peak(tasks: Tasks, order: IntArray, target: int, max_turns: int) -> tuple[IntArray, int, int]:
    """Reorder until at most `target` bytes are alive, or nothing helps.

    Args:
        tasks: The tasks and their values.
        order: A valid order to start from.
        target: Bytes.
        max_turns: Peaks to lower at most.

    Returns:
        The new order, its peak, and the work done (about nodes of networks visited).
    """
    if len(order) == 0:
        return order, tasks.base, 0
    return _lower_peaks(tasks, arranged(tasks, order), target, max_turns)


@compiled
def _lower_peaks(tasks: Tasks, now: Arrangement, target: int, max_turns: int) -> tuple[IntArray, int, int]:
    """See `lower_peak`."""
    work = len(now.order)
    for _ in range(max_turns):
        now, is_lower, effort = _lower_highest(tasks, now, target)
        work += effort
        if not is_lower:
            break
    return now.order, now.alive.max(), work


@inner
def _lower_highest(tasks: Tasks, now: Arrangement, target: int) -> tuple[Arrangement, bool, int]:
    """An arrangement with a lower peak around the first highest position of `now`, whether there is one, the work."""
    peak = int(np.argmax(now.alive))
    low, high = _free_around(tasks.fixed, now.order, peak)
    # No window yet; one that fixed tasks cut short is not tried twice.
    work, tried_first, tried_end = 0, peak, peak
    for distance in DISTANCES:
        first, end = max(low, peak - distance), min(high, peak + distance)
        if now.alive[peak] <= target or (tried_first == first and tried_end == end):
            break
        tried_first, tried_end = first, end
        # Below the highest position outside of the window nothing is gained.
        enough = max(target, 0)
        for p in range(len(now.order)):
            if p < first or p >= end:
                enough = max(enough, now.alive[p])
        better, is_lower, effort = _settle(tasks, now, first, end, enough)
        work += effort + len(now.order)
        if is_lower:
            return better, True, work
    return now, False, work


@inner
def _free_around(fixed: BoolArray, order: IntArray, peak: int) -> tuple[int, int]:
    """The longest run of positions around `peak` without fixed tasks; `peak` alone if its task is fixed."""
    low, high = peak, peak + 1
    if not fixed[order[peak]]:
        while low > 0 and not fixed[order[low - 1]]:
            low -= 1
        while high < len(order) and not fixed[order[high]]:
            high += 1
    return low, high


@inner
def _settle(tasks: Tasks, now: Arrangement, start: int, stop: int, target: int) -> tuple[Arrangement, bool, int]:
    """Cut the tasks at positions `start` to `stop` (exclusive) apart until `target` bytes, or nothing helps.

    Returns:
        The arrangement of the lowest peak there, whether it is lower than that of `now`, and the work done.
    """
    # The part that each position belongs to: tasks are rearranged only within it, so earlier cuts hold.
    low, high = np.full(len(now.order), start), np.full(len(now.order), stop)
    seen = np.zeros(len(now.order), np.bool_)
    best, is_lower, work = now, False, 0
    best_peak = now.alive[start:stop].max()
    for _ in range(MAX_CUTS):
        peak = start + int(np.argmax(now.alive[start:stop]))
        first, end = low[peak], high[peak]
        # A part of one task has one order.
        if best_peak <= target or end - first <= 1:
            break
        nodes, arcs, count = _arcs_of(tasks, now, first, end, peak)
        before, effort = source_side(nodes, arcs[:count])
        work += effort + len(tasks.size) + len(tasks.later)
        order, at = _cut_apart(now.order, before, first, end, peak)
        new = arranged(tasks, order)
        # The minimum cut is the lowest that this peak can be in its part.
        if new.alive[at] >= now.alive[peak]:
            break
        # The peak task stays in the later part, where it may still move past others.
        high[first:at] = at
        low[at:end] = at
        # A task that is the peak again becomes a part of its own, so that the cuts come to an end.
        task = now.order[peak]
        if seen[task]:
            low[at + 1 : end], high[at] = at + 1, at + 1
        seen[task] = True
        now = new
        if now.alive[start:stop].max() < best_peak:
            best, is_lower, best_peak = now, True, now.alive[start:stop].max()
    return best, is_lower, work


@inner
def _cut_apart(order: IntArray, before: BoolArray, first: int, end: int, peak: int) -> tuple[IntArray, int]:
    """The order with those of `before`, then the task at `peak`, then the rest of its part; the peak task's position.

    Within each side the tasks keep their order, so it stays valid.
    """
    new, k = order.copy(), first
    for p in range(first, end):
        if before[2 + p - first]:
            new[k] = order[p]
            k += 1
    at = k
    new[at] = order[peak]
    for p in range(first, end):
        if not before[2 + p - first] and p != peak:
            k += 1
            new[k] = order[p]
    return new, at


@inner
def _arcs_of(tasks: Tasks, now: Arrangement, low: int, high: int, peak: int) -> tuple[int, IntArray, int]:
    """The network whose cuts are the sets of tasks, of those at `low` to `high` (exclusive), before that at `peak`.

    Nodes: source, sink, a node a task, a node a value.  A node on the side of the source stands for a task that
    runs before, or a value that all of its readers have read.

    Returns:
        Number of nodes; arcs as rows (from, to, capacity); number of arcs.
    """
    place, made, last, size = now.place, now.made, now.last, tasks.size
    nodes, k = 2 + high - low, 0
    most = 2 * len(size) + len(tasks.readers) + 2 * len(tasks.later) + high - low
    arcs = np.empty((most, 3), np.int64)
    scale = high - low + 1  # a byte weighs more than all moves together
    for v in range(len(size)):
        # Alive at the end of the window, wherever in it the readers run.
        held = tasks.kept[v] or last[v] >= high
        # No bytes, or alive at all positions of the window or at none: no order changes that.
        if size[v] == 0 or made[v] >= high or (made[v] < low and (held or last[v] < low)):
            continue
        # Cut where the maker runs before the peak and a reader does not: then the value is alive there.
        maker = 2 + made[v] - low if made[v] >= low else SOURCE
        if held or last[v] >= 0:
            arcs[k, 0], arcs[k, 1], arcs[k, 2] = maker, SINK if held else nodes, size[v] * scale
            k += 1
        if held:
            continue
        for i in range(tasks.start[v], tasks.start[v + 1]):
            # A value counts as read up only if all its readers run before: infinite arcs to each of them.
            if place[tasks.readers[i]] >= low:
                arcs[k, 0], arcs[k, 1], arcs[k, 2] = nodes, 2 + place[tasks.readers[i]] - low, INFINITE
                k += 1
        nodes += 1
    for i in range(len(tasks.later)):
        a, b = place[tasks.later[i]], place[tasks.earlier[i]]
        # If the later one runs before the peak, so does the earlier one; what the peak depends on does in any case.
        if b >= low and a < high:
            arcs[k, 0], arcs[k, 1], arcs[k, 2] = SOURCE if a == peak else 2 + a - low, 2 + b - low, INFINITE
            k += 1
    for p in range(low, high):
        # A capacity of 1 on the side where a task stands: of equal cuts, the one that moves fewest tasks wins.
        task = 2 + p - low
        arcs[k, 0] = SOURCE if p < peak else task
        arcs[k, 1] = task if p < peak else SINK
        arcs[k, 2] = INFINITE if p == peak else 1
        k += 1
    return nodes, arcs, k
