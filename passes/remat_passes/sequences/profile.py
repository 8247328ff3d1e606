"""Exact memory profile of a sequence of operators, for planners that evaluate thousands of sequences.

The model is that of `remat_compiler.simulate.timeline`, in the form that a search needs: the *events* of each
storage, in order.  An event is the step that makes the storage (a write) or reads it.  The bytes of a storage
are then a sum of independent pieces, one a pair of neighbouring events:

    event    w       r            r          w    r
    step     3       5            9          12   13
    bytes    [3]     (3, 5]       (5, 9]     [12] (12, 13]

A piece before a read is a *gap*.  To evict the storage from a gap is to recompute it at the gap's end.  Between a read
and the next write the storage has no piece: there it is evicted already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.graph import Phase, SavePolicy, StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.sequence import is_pinned

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


READS, WRITES, END, TIME, WORKSPACE, REPLAY, REPEATABLE, MOVABLE = range(8)
"""Columns of `Arrays.ops`."""
SIZE, PRODUCER, KEPT, MUST_NOT_SAVE = range(4)
"""Columns of `Arrays.storages`."""


class Arrays(NamedTuple):
    """A problem as three tables of integers; resident storages and tangents have no place in `items`.

    Attributes:
        ops: A row an operator.  It reads ``items[READS:WRITES]`` and writes ``items[WRITES:END]``; TIME in ns;
            WORKSPACE in bytes; REPLAY is the storage of its random state or -1; REPEATABLE says whether a plan
            may execute it again; MOVABLE whether its first execution may be dropped if a later one serves.
        storages: A row a storage.  SIZE in bytes; PRODUCER is the operator that writes it or -1; KEPT says
            whether its first instance lives to the end; MUST_NOT_SAVE whether it may not cross the boundary.
        items: Storages that the operators read and write.
        tangent_bytes: Bytes of all tangents.
    """

    ops: IntArray
    storages: IntArray
    items: IntArray
    tangent_bytes: int


def arrays_of(problem: RematProblem) -> Arrays:
    """`problem` as flat arrays."""
    graph, costs = problem.graph, problem.costs
    # Residents live before the step and tangents are counted as one sum: neither changes with the sequence.
    counted = [not s.resident and s.kind is not StorageKind.TANGENT for s in graph.storages]
    storages = np.zeros((len(graph.storages), 4), np.int64)
    for storage in graph.storages:
        storages[storage.id] = (storage.size_bytes if counted[storage.id] else 0, -1, storage.kept, 0)
    ops = np.zeros((len(graph.ops), 8), np.int64)
    items: list[int] = []
    for op in graph.ops:
        reads, writes = [s for s in op.reads if counted[s]], [s for s in op.writes if counted[s]]
        pinned = is_pinned(op)
        kept = any(graph.storages[s].kept for s in writes)
        repeatable = not pinned and op.phase is not Phase.BACKWARD
        # An output of the forward needs each forward operator, so its first execution stays; and the caller holds the
        # first instance of a kept storage.
        movable = repeatable and op.phase is Phase.TANGENT_FREE and bool(writes) and not kept
        bounds = len(items), len(items) + len(reads), len(items) + len(reads) + len(writes)
        replay = -1 if op.replay is None else op.replay
        ops[op.id] = (*bounds, costs.time_ns[op.id], costs.workspace_bytes[op.id], replay, repeatable, movable)
        items += [*reads, *writes]
        for s in writes:
            storages[s, PRODUCER] = op.id
            # Pinned is the stronger mark: an operator that runs once can only serve the backward by being saved.
            unsavable = op.save_policy is SavePolicy.MUST_NOT_SAVE and not pinned
            storages[s, MUST_NOT_SAVE] = unsavable and not graph.storages[s].kept
    return Arrays(
        ops,
        storages,
        np.array(items, np.int64),
        sum(s.size_bytes for s in graph.storages if s.kind is StorageKind.TANGENT),
    )


@inner
def find_events(g: Arrays, steps: IntArray) -> tuple[IntArray, IntArray]:
    """Events of every storage: row starts, and ``2 * step + (1 if write else 0)``, ascending in a row.

    Reads of kept storages are left out, since they change nothing.
    """
    num_storages = len(g.storages)
    # Counting sort by storage: count, prefix sums, fill.
    start = np.zeros(num_storages + 1, np.int64)
    for op in steps:
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            if not g.storages[g.items[i], KEPT]:
                start[g.items[i] + 1] += 1
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            start[g.items[i] + 1] += 1
    for s in range(num_storages):
        start[s + 1] += start[s]
    fill = start[:-1].copy()
    events = np.empty(start[-1], np.int64)
    for p in range(len(steps)):
        op = steps[p]
        # Steps ascend and a step reads before it writes, so each row comes out sorted.
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            s = g.items[i]
            if not g.storages[s, KEPT]:
                events[fill[s]] = 2 * p
                fill[s] += 1
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            s = g.items[i]
            events[fill[s]] = 2 * p + 1
            fill[s] += 1
    return start, events


@inner
def live_bytes(g: Arrays, steps: IntArray, boundary: int, start: IntArray, events: IntArray) -> IntArray:
    """Live bytes at every step, workspace included."""
    n = len(steps)
    live = np.zeros(n + 1, np.int64)
    # Tangents are held to the end.  A sequence without a backward has its boundary at `n`, which is not counted.
    live[min(boundary, n)] += g.tangent_bytes
    for s in range(len(g.storages)):
        size = g.storages[s, SIZE]
        for k in range(start[s], start[s + 1]):
            p = events[k] >> 1
            if events[k] & 1:
                live[p] += size
                # The caller holds the first instance of a kept storage to the end.  Every read means that one, so a
                # repeated instance dies with its own step.
                if not (g.storages[s, KEPT] and k == start[s]):
                    live[p + 1] -= size
            else:
                # The gap after the event before; an earlier event always exists, as every counted storage is written
                # first.
                live[(events[k - 1] >> 1) + 1] += size
                live[p + 1] -= size
    # A random state is alive from the first execution of its operator to the last repetition that replays it.
    first, last = np.zeros(len(g.ops), np.int64), np.zeros(len(g.ops), np.int64)  # step + 1; 0 is none
    for p in range(n):
        op = steps[p]
        if g.ops[op, REPLAY] >= 0:
            if first[op] == 0:
                first[op] = p + 1
            last[op] = p + 1
    for op in range(len(g.ops)):
        if last[op] > first[op]:
            live[first[op] - 1] += g.storages[g.ops[op, REPLAY], SIZE]
            live[last[op]] -= g.storages[g.ops[op, REPLAY], SIZE]
    # Running sum of the differences.  Workspace is alive at its own step alone, so it stays out of `total`.
    total = 0
    for p in range(n):
        total += live[p]
        op = steps[p]
        live[p] = total + g.ops[op, WORKSPACE]
        if g.ops[op, REPLAY] >= 0 and first[op] <= p:
            live[p] += g.storages[g.ops[op, REPLAY], SIZE]  # the state that the generator returns to
    return live[:n]


@inner
def next_event(start: IntArray, events: IntArray, storage: int, step: int) -> int:
    """Index of the first event of `storage` at `step` or later; the end of its row if there is none."""
    low, high = int(start[storage]), int(start[storage + 1])
    while low < high:
        middle = (low + high) >> 1
        # ``2 * step`` is a read at `step`, the smallest event there.
        if events[middle] < 2 * step:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def measure(g: Arrays, steps: IntArray, boundary: int) -> tuple[int, int, bool]:
    """Peak in bytes, time in ns, and whether a value that must not be saved crosses the boundary."""
    start, events = find_events(g, steps)
    live = live_bytes(g, steps, boundary, start, events)
    peak, time = 0, 0
    for p in range(len(steps)):
        peak = max(peak, live[p])
        time += g.ops[steps[p], TIME]
    return peak, time, saves_forbidden(g, start, events, boundary)


@inner
def saves_forbidden(g: Arrays, start: IntArray, events: IntArray, boundary: int) -> bool:
    """Whether a value that must not be saved is alive across the boundary."""
    for s in range(len(g.storages)):
        if g.storages[s, MUST_NOT_SAVE]:
            k = next_event(start, events, s, boundary)
            # Made before the boundary and read after it, with no write in between: this instance is saved.
            if start[s] < k < start[s + 1] and events[k] & 1 == 0:
                return True
    return False


@inner
def select(steps: IntArray, boundary: int, stays: BoolArray) -> tuple[IntArray, int]:
    """The steps that stay, and their boundary."""
    left = np.empty(len(steps), np.int64)
    k, bound = 0, boundary
    for p in range(len(steps)):
        if stays[p]:
            left[k] = steps[p]
            k += 1
        elif p < boundary:
            bound -= 1
    return left[:k].copy(), bound


@inner
def drop_dead(g: Arrays, steps: IntArray, boundary: int) -> tuple[IntArray, int]:
    """`steps` and `boundary` without executions that nobody needs."""
    n = len(steps)
    first = np.zeros(len(g.ops), np.int64)
    # From the end, so that the earliest execution is what remains.
    for p in range(n - 1, -1, -1):
        first[steps[p]] = p
    needed = np.zeros(len(g.storages), np.bool_)
    stays = np.zeros(n, np.bool_)
    for p in range(n - 1, -1, -1):
        op = steps[p]
        # Outputs or gradients need every first execution, except a tangent-free one, which a later execution can
        # replace.
        keep = first[op] == p and not g.ops[op, MOVABLE]
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            s = g.items[i]
            # A read of a kept storage means its first instance, so it never asks for a repetition.
            if needed[s] and not g.storages[s, KEPT]:
                keep = True
        if not keep:
            continue
        stays[p] = True
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            # Reads further on mean this instance: no earlier one is needed for them.
            needed[g.items[i]] = False
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            needed[g.items[i]] = True
    return select(steps, boundary, stays)


@inner
def ascending(keys: FloatArray) -> IntArray:
    """Indices that sort `keys`; equal keys stay in order (a merge sort from the bottom up)."""
    # Written out because equal keys must keep their order in compiled and in plain Python alike: plans are equal to
    # the byte.
    n = len(keys)
    source, target = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        source[i] = i
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            left, right = low, middle
            for k in range(low, high):
                # `<=` takes the left one of equals: this makes the sort stable.
                if left < middle and (right >= high or keys[source[left]] <= keys[source[right]]):
                    target[k] = source[left]
                    left += 1
                else:
                    target[k] = source[right]
                    right += 1
        source, target = target, source
        width *= 2
    return source


@compiled
def drop_dead_steps(g: Arrays, steps: IntArray, boundary: int) -> tuple[IntArray, int]:
    """`drop_dead`, for callers that are not compiled."""
    return drop_dead(g, steps, boundary)


@compiled
def find_live(g: Arrays, steps: IntArray, boundary: int) -> IntArray:
    """Live bytes at every step of a sequence."""
    start, events = find_events(g, steps)
    return live_bytes(g, steps, boundary, start, events)
