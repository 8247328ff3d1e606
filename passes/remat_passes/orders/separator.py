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

from dataclasses import dataclass

import numpy as np

from remat_passes.sequences.jit import compiled
from remat_passes.sequences.max_flow import INFINITE, SINK, SOURCE, source_side
from remat_passes.sequences.profile import BoolArray, IntArray

DISTANCES = (8, 32, 128, 512)
"""How far from the peak tasks may be to be moved: the next distance is tried if the one before does not help."""
MAX_CUTS = 20
"""Most cuts of one neighbourhood."""


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
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


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
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

    @staticmethod
    def of(tasks: Tasks, order: IntArray) -> Arrangement:
        """The arrangement of `order`."""
        n = len(order)
        place = np.full(n + 1, -1, np.int64)  # one more, for makers that are no tasks
        place[order] = np.arange(n)
        made = place[tasks.maker]
        last = np.full(len(tasks.size), -1, np.int64)
        # Only values with readers: `reduceat` returns the next row's first entry for an empty row.
        read = np.flatnonzero(tasks.start[1:] > tasks.start[:-1])
        if len(read):
            last[read] = np.maximum.reduceat(place[tasks.readers], tasks.start[read])
        delta = np.zeros(n + 1, np.int64)
        delta[0] = tasks.base
        # A value that nobody reads still lives at the step that makes it.
        end = np.where(tasks.kept, n, np.maximum(made, last) + 1)
        np.add.at(delta, np.maximum(made, 0), tasks.size)
        np.subtract.at(delta, end, tasks.size)
        return Arrangement(order, place, made, last, np.cumsum(delta[:n]) + tasks.own[order])

    def highest(self, low: int, high: int) -> int:
        """Position of the most bytes at `low` to `high` (exclusive), the first of equals."""
        return low + int(np.argmax(self.alive[low:high]))


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
    n, work = len(order), len(order)
    if n == 0:
        return order, tasks.base, work
    now = Arrangement.of(tasks, order)
    for _ in range(max_turns):
        better, effort = _lower_highest(tasks, now, target)
        work += effort
        if better is now:
            break
        now = better
    return now.order, int(now.alive.max()), work


def _lower_highest(tasks: Tasks, now: Arrangement, target: int) -> tuple[Arrangement, int]:
    """An arrangement with a lower peak around the first highest position of `now`, or `now` itself; the work done."""
    peak = now.highest(0, len(now.order))
    low, high = _free_around(tasks.fixed[now.order], peak)
    # No window yet; one that fixed tasks cut short is not tried twice.
    work, tried = 0, (peak, peak)
    for distance in DISTANCES:
        first, end = max(low, peak - distance), min(high, peak + distance)
        if now.alive[peak] <= target or tried == (first, end):
            break
        tried = (first, end)
        # Below the highest position outside of the window nothing is gained.
        outside = max(int(part.max(initial=0)) for part in (now.alive[:first], now.alive[end:]))
        better, effort = settle(tasks, now, first, end, max(target, outside))
        work += effort + len(now.order)
        if better is not now:
            return better, work
    return now, work


def _free_around(fixed: BoolArray, peak: int) -> tuple[int, int]:
    """The longest run of positions around `peak` without fixed tasks; `peak` alone if its task is fixed."""
    if fixed[peak]:
        return peak, peak + 1
    before, behind = np.flatnonzero(fixed[:peak]), np.flatnonzero(fixed[peak:])
    return int(before[-1]) + 1 if len(before) else 0, peak + int(behind[0]) if len(behind) else len(fixed)


def settle(tasks: Tasks, now: Arrangement, start: int, stop: int, target: int) -> tuple[Arrangement, int]:
    """Cut the tasks at positions `start` to `stop` (exclusive) apart until `target` bytes, or nothing helps.

    Returns:
        The arrangement of the lowest peak there, `now` if none is lower, and the work done.
    """
    # The part that each position belongs to: tasks are rearranged only within it, so earlier cuts hold.
    low, high = np.full(len(now.order), start), np.full(len(now.order), stop)
    seen: set[int] = set()
    best, work = now, 0
    best_peak = int(now.alive[start:stop].max())
    for _ in range(MAX_CUTS):
        peak = now.highest(start, stop)
        first, end = int(low[peak]), int(high[peak])
        # A part of one task has one order.
        if best_peak <= target or end - first <= 1:
            break
        nodes, arcs, count = arcs_of(
            now.order, now.place, now.made, now.last, tasks.size, tasks.kept, tasks.start, tasks.readers,
            tasks.later, tasks.earlier, first, end, peak,
        )  # fmt: skip
        before, effort = source_side(nodes, arcs[:count])
        work += effort + len(tasks.size) + len(tasks.later)
        inside = now.order[first:end]
        chosen = before[2 : 2 + end - first]
        at = first + int(chosen.sum())
        task = int(now.order[peak])
        rest = inside[~chosen]
        order = now.order.copy()
        # Within each side the tasks keep their order, so it stays valid.
        order[first:end] = np.concatenate([inside[chosen], [task], rest[rest != task]])
        new = Arrangement.of(tasks, order)
        # The minimum cut is the lowest that this peak can be in its part.
        if new.alive[at] >= now.alive[peak]:
            break
        now = new
        # The peak task stays in the later part, where it may still move past others.
        high[first:at] = at
        low[at:end] = at
        # A task that is the peak again becomes a part of its own, so that the cuts come to an end.
        if task in seen:
            low[at + 1 : end], high[at] = at + 1, at + 1
        seen.add(task)
        if now.alive[start:stop].max() < best_peak:
            best, best_peak = now, int(now.alive[start:stop].max())
    return best, work


@compiled
def arcs_of(
    order: IntArray,
    place: IntArray,
    made: IntArray,
    last: IntArray,
    size: IntArray,
    kept: BoolArray,
    start: IntArray,
    readers: IntArray,
    later: IntArray,
    earlier: IntArray,
    low: int,
    high: int,
    peak: int,
) -> tuple[int, IntArray, int]:
    """The network whose cuts are the sets of tasks, of those at `low` to `high` (exclusive), before that at `peak`.

    Nodes: source, sink, a node a task, a node a value.  A node on the side of the source stands for a task that
    runs before, or a value that all of its readers have read.

    Returns:
        Number of nodes; arcs as rows (from, to, capacity); number of arcs.
    """
    nodes, k = 2 + high - low, 0
    arcs = np.empty((2 * len(size) + len(readers) + 2 * len(later) + high - low, 3), np.int64)
    scale = high - low + 1  # a byte weighs more than all moves together
    for v in range(len(size)):
        # Alive at the end of the window, wherever in it the readers run.
        held = kept[v] or last[v] >= high
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
        for i in range(start[v], start[v + 1]):
            # A value counts as read up only if all its readers run before: infinite arcs to each of them.
            if place[readers[i]] >= low:
                arcs[k, 0], arcs[k, 1], arcs[k, 2] = nodes, 2 + place[readers[i]] - low, INFINITE
                k += 1
        nodes += 1
    for i in range(len(later)):
        a, b = place[later[i]], place[earlier[i]]
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
