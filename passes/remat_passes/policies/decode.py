"""From a policy to its plan, and to the figures of that plan, in compiled loops: some microseconds for each.

The plan is what `sequences.recompute` makes of the values that are not recomputed, with a transfer for each moved value
from its last use in the forward to its first one in the backward.
"""

from __future__ import annotations

import numpy as np

from remat_passes.policies.policy import MOVE, RECOMPUTE, Policies
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    MUST_NOT_SAVE,
    PRODUCER,
    READS,
    SIZE,
    TIME,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
    drop_dead,
    find_events,
    live_bytes,
    next_event,
)
from remat_passes.transfers.prefetch import Moves, places
from remat_passes.transfers.waiting import waiting_ns

OVER = 1 << 60
"""Rank of a policy over the budget, without the bytes that it is over."""


@compiled
def decode(p: Policies, actions: IntArray) -> tuple[IntArray, int, IntArray, IntArray]:
    """The steps of a policy, their boundary, the storages that are moved, and when each leaves and returns."""
    steps, boundary = _steps(p, actions)
    start, events = find_events(p.g, steps)
    live = live_bytes(p.g, steps, boundary, start, events)
    storages, moves = _moves(p, actions, boundary, start, events)
    found = _placed(p.budget_bytes, moves, live, _begins(p.g, steps), boundary)
    return steps, boundary, storages, found


@compiled
def measure_policy(p: Policies, actions: IntArray) -> tuple[int, int, int]:
    """Peak in bytes, added time in ns, and bytes off the device of the plan of a policy, as the simulator has them."""
    return figures(p, actions)


@inner
def figures(p: Policies, actions: IntArray) -> tuple[int, int, int]:
    """`measure_policy`, for compiled callers."""
    steps, boundary = _steps(p, actions)
    start, events = find_events(p.g, steps)
    live = live_bytes(p.g, steps, boundary, start, events)
    begins = _begins(p.g, steps)
    once, seen = 0, np.zeros(len(p.g.ops), np.bool_)
    for op in steps:
        once += 0 if seen[op] else p.g.ops[op, TIME]
        seen[op] = True
    added, room = begins[len(steps)] - once, 0
    storages, moves = _moves(p, actions, boundary, start, events)
    if len(storages):
        found = _placed(p.budget_bytes, moves, live, begins, boundary)
        _count_new_memory(p, steps, start, events, live, storages, moves.made, found)
        late, copied = waiting_ns(moves, found, begins, boundary), 0
        for i in range(len(storages)):
            copied += moves.out_ns[i] + moves.back_ns[i]
            room += p.pages_bytes[storages[i]]
        # Each moved value is copied out once and back once.
        added += late + max(copied - late, 0) * p.drag_percent // 100 + 2 * len(storages) * p.begin_ns
    peak = 0
    for here in live:
        peak = max(peak, here)
    return peak, added, room


@inner
def rank(p: Policies, actions: IntArray) -> int:
    """Smaller is better: the added time of a policy that fits; of others, by how much they do not.

    One that moves more than there is room for is worse than any other: what is over the budget may be all that there
    is to answer, and that is still a plan.
    """
    peak, added, room = figures(p, actions)
    over = max(peak - p.budget_bytes, 0)
    if room > p.room_bytes:
        return 2 * OVER + over + room - p.room_bytes
    return added if over == 0 else OVER + over


@inner
def _steps(p: Policies, actions: IntArray) -> tuple[IntArray, int]:
    """The steps of a policy without dead repeats, and their boundary."""
    g = p.g
    at_hand = p.at_hand.copy()
    for s in range(len(at_hand)):
        # What the policy does not decide about is saved if need be, as by `recompute`.
        at_hand[s] = at_hand[s] or not g.storages[s, MUST_NOT_SAVE]
    for v in range(len(actions)):
        if actions[v] == RECOMPUTE:
            at_hand[p.values[v]] = p.at_hand[p.values[v]]
    for op in p.backward:
        for i in range(g.ops[op, WRITES], g.ops[op, END]):
            at_hand[g.items[i]] = True
    room = len(p.forward) + len(p.backward)
    # Each read of the backward makes at most the whole forward again.
    steps = np.empty(2 * room + len(g.ops) * 2, np.int64)
    done = len(p.forward)
    steps[:done] = p.forward
    stack, wanted = np.empty(len(g.items) + 1, np.int64), np.zeros(len(g.ops), np.bool_)
    for op in p.backward:
        for tagged in range(2):
            low = done
            done, steps = _closure(g, op, tagged == 1, at_hand, stack, wanted, steps, done)
            for k in range(low, done):
                wanted[steps[k]] = False
                for i in range(g.ops[steps[k], WRITES], g.ops[steps[k], END]):
                    at_hand[g.items[i]] = True
        if done == len(steps):
            steps = _grown(steps)
        steps[done] = op
        done += 1
    return drop_dead(g, steps[:done].copy(), len(p.forward))


@inner
def _closure(
    g: Arrays, op: int, tagged: bool, at_hand: BoolArray, stack: IntArray, wanted: BoolArray, steps: IntArray, done: int
) -> tuple[int, IntArray]:
    """Add to `steps` what must run so that `op` finds its inputs, in order; the number of steps then, and `steps`."""
    low, depth = done, 0
    for i in range(g.ops[op, READS], g.ops[op, WRITES]):
        if not at_hand[g.items[i]] and (tagged or not g.storages[g.items[i], MUST_NOT_SAVE]):
            stack[depth] = g.items[i]
            depth += 1
    while depth:
        depth -= 1
        producer = g.storages[stack[depth], PRODUCER]
        if wanted[producer]:
            continue
        wanted[producer] = True
        if done == len(steps):
            steps = _grown(steps)
        steps[done] = producer
        done += 1
        for i in range(g.ops[producer, READS], g.ops[producer, WRITES]):
            if not at_hand[g.items[i]]:
                stack[depth] = g.items[i]
                depth += 1
    # Operator numbers follow the joint order, which puts makers before readers.
    steps[low:done].sort()
    return done, steps


@inner
def _grown(steps: IntArray) -> IntArray:
    """A longer array that begins with `steps`."""
    longer = np.empty(2 * len(steps), np.int64)
    longer[: len(steps)] = steps
    return longer


@inner
def _begins(g: Arrays, steps: IntArray) -> IntArray:
    """When each step begins if none waits, and at last when the step ends."""
    begins = np.empty(len(steps) + 1, np.int64)
    begins[0] = 0
    for k in range(len(steps)):
        begins[k + 1] = begins[k] + g.ops[steps[k], TIME]
    return begins


@inner
def _moves(p: Policies, actions: IntArray, boundary: int, start: IntArray, events: IntArray) -> tuple[IntArray, Moves]:
    """The moved storages whose instance of the forward is read in the backward, and their moves."""
    storages, count = np.empty(len(actions), np.int64), 0
    rows = np.empty((len(actions), 3), np.int64)
    for v in range(len(actions)):
        s = p.values[v]
        if actions[v] != MOVE:
            continue
        k = next_event(start, events, s, boundary)
        # Made in the forward and read in the backward before it is made again.
        if not start[s] < k < start[s + 1] or events[k] & 1:
            continue
        made = k - 1
        while events[made] & 1 == 0:
            made -= 1
        first, read = (events[k - 1] >> 1) + 1, events[k] >> 1
        if first < read:
            storages[count] = s
            rows[count, 0], rows[count, 1], rows[count, 2] = events[made] >> 1, first, read
            count += 1
    storages = storages[:count].copy()
    rows = rows[:count].copy()
    sizes = p.g.storages[:, SIZE].copy()[storages]
    return storages, Moves(
        rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy(), sizes, p.out_ns[storages], p.back_ns[storages]
    )


@inner
def _placed(budget: int, moves: Moves, live: IntArray, begins: IntArray, boundary: int) -> IntArray:
    """When each leaves and returns; `live` becomes what is alive then."""
    away = np.zeros(len(live) + 1, np.int64)
    for i in range(len(moves.made)):
        away[moves.first[i]] += moves.size_bytes[i]
        away[moves.read[i]] -= moves.size_bytes[i]
    limit, gone = budget, 0
    for step in range(len(live)):
        gone += away[step]
        live[step] -= gone
        limit = max(limit, live[step])
    return places(moves, live, begins, boundary, limit)


@inner
def _count_new_memory(
    p: Policies,
    steps: IntArray,
    start: IntArray,
    events: IntArray,
    live: IntArray,
    storages: IntArray,
    made: IntArray,
    found: IntArray,
) -> None:
    """Add to `live` what results cannot take over from arguments that have been off the device."""
    g = p.g
    which = np.full(len(g.storages), -1, np.int64)
    for i in range(len(storages)):
        which[storages[i]] = i
    for step in range(len(steps)):
        op, size = steps[step], -g.ops[steps[step], WORKSPACE]
        if size <= 0:
            continue
        away = False
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            s = g.items[i]
            one = which[s]
            if one < 0 or g.storages[s, SIZE] != size:
                continue
            k = next_event(start, events, s, step)
            if k + 1 < start[s + 1] and events[k + 1] & 1 == 0:
                continue
            if found[one, 1] <= step:
                k -= 1
                while events[k] & 1 == 0:
                    k -= 1
                away = away or events[k] >> 1 == made[one]
        if away:
            live[step] += size
