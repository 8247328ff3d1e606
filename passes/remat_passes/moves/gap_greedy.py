"""Gap greedy: evict values from gaps between their uses until the peak fits the budget.

One round: take the step of the highest peak; every value that is alive there without being used there is a
candidate.  To evict it is to recompute it just before its next use: from inputs that are alive there, inputs that can
live on until then, or inputs that are recomputed themselves (its *cone*).  The candidates of most bytes for the least
time win, until a share of the excess is covered.  Recomputed values are candidates of later rounds, so that one value
may be recomputed several times.
"""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    KEPT,
    MOVABLE,
    MUST_NOT_SAVE,
    PRODUCER,
    READS,
    REPEATABLE,
    SIZE,
    TIME,
    WRITES,
    Arrays,
    FloatArray,
    IntArray,
    ascending,
    drop_dead,
    next_event,
    saves_forbidden,
)
from remat_passes.sequences.scene import Scene, fits, scene_of

SHORTEST_LIST = 64
"""Candidates that a round always looks at, and ..."""
LIST_COVER = 6
"""... more of them, until they cover this many times the bytes that the round is to free."""
ENOUGH = 2.0
"""The ranked candidates cover this many times the bytes that a round is to free: some of them exclude each other."""
MAX_CONE = 400
"""Largest number of operators that one eviction may repeat, unless the value must not be saved."""


@inner
def find_cone(
    g: Arrays,
    scene: Scene,
    storage: int,
    step: int,
    peak: int,
    seen: IntArray,
    stamp: int,
    most_ns: float,
    cone: IntArray,
    base: IntArray,
) -> tuple[int, int, int, int]:
    """Find the operators that recompute `storage` just before `step`, and their price.

    Args:
        g: The problem.
        scene: The sequence.
        storage: The value to recompute.
        step: Where it is read.
        peak: The step that must be relieved.
        seen: Scratch, by operator: `stamp` if it is in the cone.
        stamp: A number not in `seen` yet.
        most_ns: Time above which the eviction is not worth while.
        cone: Receives the operators, as found.
        base: Receives the events that end the gaps in which available inputs live; these gaps must not be evicted.

    Returns:
        Numbers of operators (-1: impossible) and of base events, time in ns, and bytes that live on across `peak`.
    """
    # Plain arrays: each look-up in a tuple costs more than the work on the arrays here.
    ops, storages, items = g.ops, g.storages, g.items
    start, events, live, blocks = scene.start, scene.events, scene.live, scene.blocks
    cone[0] = storages[storage, PRODUCER]
    seen[cone[0]] = stamp
    count, done, bases, time, crossing = 1, 0, 0, 0, 0
    if ops[cone[0], MOVABLE] and next_event(start, events, storage, step) == start[storage] + 1:
        time = -ops[cone[0], TIME]  # nothing reads its first execution, which then takes place here
    # Breadth first from the value back to available inputs; `cone` is the queue.
    while done < count:
        op = cone[done]
        done += 1
        if not ops[op, REPEATABLE]:
            return -1, 0, 0, 0
        # A result that can live on to the next repetition of `op` replaces it: `trim` will drop that one, so the cone
        # costs no time for `op`.
        replaces = False
        for i in range(ops[op, WRITES], ops[op, END]):
            s = items[i]
            k, last = next_event(start, events, s, step), step
            while k < start[s + 1] and events[k] & 1 == 0:
                last = events[k] >> 1
                k += 1
            if k < start[s + 1]:
                # Between the last read of this instance and the next write the profile does not count the value yet.
                limit = scene.budget - storages[s, SIZE]
                replaces = replaces or fits(live, blocks, limit, last + 1, (events[k] >> 1) - 1)
        time += 0 if replaces else ops[op, TIME]
        if time > most_ns:
            return -1, 0, 0, 0
        for i in range(ops[op, READS], ops[op, WRITES]):
            s = items[i]
            if storages[s, KEPT]:
                continue
            k = next_event(start, events, s, step)
            if k == start[s]:
                return -1, 0, 0, 0  # it does not exist yet
            before, maker = events[k - 1] >> 1, storages[s, PRODUCER]
            # An instance from before the boundary is of no use if it must not be saved: it joins the cone.
            if not (storages[s, MUST_NOT_SAVE] and before < scene.boundary <= step):
                if k < start[s + 1] and events[k] & 1 == 0:
                    # Room for events is limited; a cone that needs more is too large to pay off.
                    if bases == len(base):
                        return -1, 0, 0, 0
                    base[bases] = k
                    bases += 1
                    continue
                # Its last instance ended before `step`.  Letting it live on is free of time, but must neither cross
                # the peak nor make a new one.
                limit = scene.budget - storages[s, SIZE]
                if not before < peak < step and fits(live, blocks, limit, before + 1, step - 1):
                    continue  # it may live on
            if not ops[maker, REPEATABLE]:
                # It cannot run again, so its result has to live on; these bytes count against the eviction.
                crossing += storages[s, SIZE]
            elif seen[maker] != stamp:
                if count == len(cone):
                    return -1, 0, 0, 0
                cone[count] = maker
                seen[maker] = stamp
                count += 1
    return count, bases, time, crossing


@inner
def find_candidates(
    g: Arrays, scene: Scene, peak: int, forced: bool, width: int, noise: float, state: int
) -> tuple[IntArray, IntArray, FloatArray, int]:
    """Gaps across step `peak`; with `forced`, gaps of unsavable values across the boundary.

    Returns:
        Storages, the events (reads) that end the gaps, their weights in scores, and the state of the generator.
    """
    ops, storages, start, events, live = g.ops, g.storages, scene.start, scene.events, scene.live
    # Prefix sums: steps over the budget in any span, in constant time.
    over = np.zeros(len(live) + 1, np.int64)
    for p in range(len(live)):
        over[p + 1] = over[p] + (1 if live[p] > scene.budget else 0)
    most = len(storages)
    values, found, weights = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float64)
    count = 0
    for s in range(most):
        # A storage without producer (-1) looks at the last operator here; its size of 0 and its policy exclude it
        # below.
        if storages[s, KEPT] or not ops[storages[s, PRODUCER], REPEATABLE]:
            continue
        if storages[s, MUST_NOT_SAVE] == 0 if forced else storages[s, SIZE] == 0:
            continue
        k = next_event(start, events, s, scene.boundary if forced else peak)
        if k == start[s] or k == start[s + 1] or events[k] & 1:
            continue
        before, step = events[k - 1] >> 1, events[k] >> 1
        # A value that is used at the peak must be there: no eviction lowers it.
        if not forced and (step == peak or before == peak):
            continue
        # Steps over the budget strictly inside the gap: an eviction that relieves several peaks saves later rounds.
        weight = float(over[step] - over[before + 1])
        weight = 1.0 if width == 0 else np.sqrt(weight) if width == 1 else weight
        # A hash and no stream of random numbers: a value gets the same noise whichever others are candidates.
        mixed = ((s + 1) * 1103515245 + state * 69069) & 0x7FFFFFFF
        mixed = (mixed * 1103515245 + 12345) & 0x7FFFFFFF
        values[count], found[count], weights[count] = s, k, weight * (1.0 + noise * (mixed / 2147483648.0))
        count += 1
    return values[:count], found[:count], weights[:count], state


@inner
def shortlist(g: Arrays, values: IntArray, candidates: IntArray, weights: FloatArray, excess: int, share: float) -> int:
    """Put first the candidates that could score best (their cone being one operator); the number worth a look."""
    scores = np.empty(len(values), np.float64)
    for c in range(len(values)):
        size, time = g.storages[values[c], SIZE], g.ops[g.storages[values[c], PRODUCER], TIME]
        # Bytes beyond the excess bring nothing.  Negative, since `ascending` puts the least first.
        scores[c] = -weights[c] * min(size, excess) / max(time, 1)
    order = ascending(scores)
    old_values, old_candidates, old_weights = values.copy(), candidates.copy(), weights.copy()
    count, covered = 0, 0
    for c in range(len(values)):
        i = order[c]
        values[c], candidates[c], weights[c] = old_values[i], old_candidates[i], old_weights[i]
        if c < SHORTEST_LIST or covered < LIST_COVER * share * excess:
            count = c + 1
        covered += g.storages[values[c], SIZE]
    return count


@inner
def distinct(keys: FloatArray) -> IntArray:
    """`keys`, whole numbers, ascending and each once."""
    order = ascending(keys)
    items = np.empty(len(keys), np.int64)
    count = 0
    for i in range(len(keys)):
        # Two evictions that end at one step share the operators of both cones.
        if i == 0 or keys[order[i]] != keys[order[i - 1]]:
            items[count] = int(keys[order[i]])
            count += 1
    return items[:count]


@inner
def choose_evictions(
    g: Arrays, scene: Scene, peak: int, forced: bool, share: float, width: int, noise: float, state: int
) -> tuple[IntArray, int, int]:
    """Operators to insert, as sorted ``step * operators + operator``; the state of the generator; the work done."""
    values, candidates, weights, state = find_candidates(g, scene, peak, forced, width, noise, state)
    excess = max(scene.live[peak] - scene.budget, 1)
    count = len(values) if forced else shortlist(g, values, candidates, weights, excess, share)
    num_ops = len(g.ops)
    seen = np.zeros(num_ops, np.int64)
    # A cone repeats operators at one place: long ones rarely pay off.  A value that must not be saved has no other
    # way.
    most = num_ops if forced else min(MAX_CONE, num_ops)
    cone, base = np.empty(most, np.int64), np.empty(8 * most, np.int64)
    cone_rows, base_rows = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    cones, bases = np.empty(1024, np.int64), np.empty(1024, np.int64)
    scores, gains = np.empty(count, np.float64), np.empty(count, np.int64)
    ranked, num_ranked, ranked_gain, worst = np.empty(count, np.int64), 0, 0, 0.0
    # Enough for ranking: candidates that score below those that cover it already are not wanted.
    need = np.inf if forced else ENOUGH * share * excess
    work = len(scene.live)
    for c in range(count):
        s, step = values[c], scene.events[candidates[c]] >> 1
        # No cone can score more than its value promises, so one that takes longer than `most_ns` scores below the
        # worst of those ranked; its search stops there.
        promise = weights[c] * min(g.storages[s, SIZE], excess)
        most_ns = np.inf if ranked_gain < need else promise / worst
        size, num_base, time, crossing = find_cone(g, scene, s, step, peak, seen, c + 1, most_ns, cone, base)
        work += 4 * (abs(size) + num_base)
        gains[c] = g.storages[s, SIZE] - crossing
        if size < 0 or (gains[c] <= 0 and not forced):
            size, num_base, gains[c] = 0, 0, 0
        elif not forced:
            # Keep the best that cover `need`, best first; a candidate that scores less than the last is not wanted.
            score = weights[c] * min(gains[c], excess) / max(time, 1)
            k = num_ranked
            while k > 0 and -scores[ranked[k - 1]] < score:
                ranked[k] = ranked[k - 1]
                k -= 1
            ranked[k] = c
            scores[c] = -score
            num_ranked += 1
            ranked_gain += gains[c]
            while num_ranked > 1 and ranked_gain - gains[ranked[num_ranked - 1]] >= need:
                num_ranked -= 1
                ranked_gain -= gains[ranked[num_ranked]]
            worst = -scores[ranked[num_ranked - 1]]
        cones = append(cones, cone_rows[c], cone, size)
        bases = append(bases, base_rows[c], base, num_base)
        cone_rows[c + 1], base_rows[c + 1] = cone_rows[c] + size, base_rows[c] + num_base
        # A candidate that left the ranking keeps its score: below, it may replace one that others exclude.
        scores[c] = -weights[c] * min(gains[c], excess) / max(time, 1)
    order = ascending(scores)
    touched = np.zeros(len(scene.events), np.int8)  # 1: evicted, 2: another eviction relies on it
    inserts = np.empty(cone_rows[count], np.float64)  # exact: below 2 ** 53
    total, covered = 0, 0
    for c in order:
        if gains[c] <= 0 and not forced:
            continue
        if covered >= share * excess and not forced:
            break
        # Each eviction was priced by itself: one that another relies on, or whose inputs were evicted in this round,
        # no longer holds.
        free = touched[candidates[c]] == 0
        for i in range(base_rows[c], base_rows[c + 1]):
            free = free and touched[bases[i]] != 1
        if not free or cone_rows[c] == cone_rows[c + 1]:
            continue
        touched[candidates[c]] = 1
        for i in range(base_rows[c], base_rows[c + 1]):
            touched[bases[i]] = 2
        for i in range(cone_rows[c], cone_rows[c + 1]):
            # The key sorts by place, then by operator, whose number puts makers before readers.
            inserts[total] = (scene.events[candidates[c]] >> 1) * num_ops + cones[i]
            total += 1
        covered += gains[c]
    return distinct(inserts[:total]), state, work


@inner
def append(items: IntArray, length: int, more: IntArray, count: int) -> IntArray:
    """`items` (or a longer copy) with the first `count` of `more` from position `length` on."""
    if length + count > len(items):
        longer = np.empty(2 * (length + count), np.int64)
        for i in range(length):
            longer[i] = items[i]
        items = longer
    for i in range(count):
        items[length + i] = more[i]
    return items


@inner
def insert(steps: IntArray, boundary: int, inserts: IntArray, num_ops: int) -> tuple[IntArray, int]:
    """`steps` with operators inserted, see `choose_evictions`."""
    longer = np.empty(len(steps) + len(inserts), np.int64)
    k, bound = 0, boundary
    for p in range(len(steps)):
        while k < len(inserts) and inserts[k] // num_ops == p:
            longer[p + k] = inserts[k] % num_ops
            k += 1
            # An insertion at the boundary itself belongs to the backward.
            if p < boundary:
                bound += 1
        longer[p + k] = steps[p]
    return longer, bound


@compiled
def evict_until_fits(
    g: Arrays,
    steps: IntArray,
    boundary: int,
    budget: int,
    share: float,
    width: int,
    noise: float,
    seed: int,
    patience: int,
    most_ns: int,
) -> tuple[IntArray, int, int, int]:
    """Evict until the peak is at most `budget`.

    Args:
        g: The problem.
        steps: The sequence to start from.
        boundary: Its boundary.
        budget: Bytes.
        share: Share of the excess at the peak that one round covers.
        width: Weight of the steps over budget in a gap: 0 none, 1 square root of their number, 2 their number.
        noise: Largest relative change of a score, drawn from `seed`.
        seed: State of the generator.
        patience: Rounds without a lower peak after which to give up.
        most_ns: Time of the sequence above which to give up.

    Returns:
        The sequence of the lowest peak seen, its boundary, that peak, and the work done (about steps visited).
    """
    best, best_boundary, best_peak = steps, boundary, np.int64(9223372036854775807)
    stalled, work = 0, 0
    while True:
        scene = scene_of(g, steps, boundary, budget)
        forced = saves_forbidden(g, scene.start, scene.events, scene.boundary)
        peak = 0
        for p in range(len(steps)):
            if scene.live[p] > scene.live[peak]:
                peak = p
        # A sequence that saves a forbidden value is no plan, so such values are evicted first, whatever the peak, and
        # it is no result.
        if not forced:
            stalled += 1
            if scene.live[peak] < best_peak:
                best, best_boundary, best_peak, stalled = steps, boundary, scene.live[peak], 0
            time = 0
            for p in range(len(steps)):
                time += g.ops[steps[p], TIME]
            if best_peak <= budget or stalled > patience or time > most_ns:
                break
        inserts, seed, effort = choose_evictions(g, scene, peak, forced, share, width, noise, seed)
        work += effort
        # Every value alive at the peak is used there, cannot be recomputed, or needs as many bytes of inputs instead.
        if len(inserts) == 0:
            break
        steps, boundary = insert(steps, boundary, inserts, len(g.ops))
        # Reads now mean the new instances, so older repetitions may have lost all readers.
        steps, boundary = drop_dead(g, steps, boundary)
    return best, best_boundary, best_peak, work + len(steps)
