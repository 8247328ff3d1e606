"""Climb: lower the added time of a sequence that fits the budget, by small changes in many small regions.

One turn drops some neighbouring repetitions, so that earlier instances of their results must live on; evicts the
cheapest values until the budget is met again; and trims.  Turns run on a *zoom* of the sequence, since their time
grows with its length.  Slightly slower sequences are accepted on the way by chance, as in simulated annealing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from remat_passes.moves.gap_greedy import evict_until_fits
from remat_passes.moves.trim import trim
from remat_passes.moves.zoom import region, whole, zoom
from remat_passes.sequences.candidate import TOLERANCE, SequenceCandidate
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    MOVABLE,
    PRODUCER,
    READS,
    REPEATABLE,
    TIME,
    WRITES,
    Arrays,
    IntArray,
    drop_dead,
    measure,
    select,
)

WORK_PER_SECOND = 20_000_000
"""Work that stands for one second: about the steps that a climb visits in it."""
REGIONS = ((80, 1), (160, 2), (320, 2))
"""Operators of a zoom, and the number of places that they surround; zooms take these settings in turn."""
TURNS = 10
"""Turns in a zoom."""
RETURN_AFTER = 30
"""Zooms without improvement after which the climb goes on from the best sequence."""
MAX_IDLE = 400
"""Zooms without improvement after which it ends."""
PATIENCE, MAX_PASSES = 8, 50
PARTS = (50, 20, 8, 3, 1)
"""A turn drops repetitions within one part in so many of all of them, and ..."""
PERCENTS = (30, 60, 100, 100)
"""... this percentage of those in the part."""
SHARES, WIDTHS, NOISES = (0.5, 1.0, 1.0), (0, 1, 1, 2), (0.0, 0.3, 1.0, 3.0)
"""Settings of `evict_until_fits`."""
WORTH = 2.5
"""Evictions are given up when they take this many times the time that dropping repetitions has saved."""
ADVANCE_ONE_IN = 8
"""One turn in so many also moves a tangent-free operator into the forward."""


@dataclass(slots=True, eq=False)
class Climber:
    """Climbs on one problem.

    Attributes:
        g: The problem.
        budget: Bytes.
        limit_ns: Longest time of a sequence.
        once: Time of executing every operator once, in ns.
        draw: Random numbers.
    """

    g: Arrays
    budget: int
    limit_ns: int
    once: int
    draw: random.Random

    def run(self, start: SequenceCandidate, work: int, max_idle: int = MAX_IDLE) -> tuple[SequenceCandidate, int]:
        """The best sequence found from `start`, which fits, and what is left of `work` (about steps visited)."""
        best = now = start
        count = int(np.count_nonzero(self.g.ops[:, REPEATABLE]))
        turn = idle = 0
        while work > 0 and idle < max_idle:
            # Small regions first, which are quick; a region of all repeatable operators would be the whole sequence.
            most, places = REGIONS[turn % len(REGIONS)]
            better, now, done = self._turns(now) if most >= count else self._zoomed(now, most, places)
            work -= done
            turn, idle = turn + 1, idle + 1
            # At equal time the lower peak leaves more room for the next changes.
            if (better.time, better.peak) < (best.time, best.peak):
                best = now = better
                idle = 0
            elif idle % RETURN_AFTER == 0:
                now = best
        return best, work

    def _turns(self, entry: SequenceCandidate) -> tuple[SequenceCandidate, SequenceCandidate, int]:
        """The best and the last sequence of some turns, and the work done."""
        found = climb(
            self.g,
            entry.steps,
            entry.boundary,
            self.budget,
            self.limit_ns,
            self.once,
            TURNS,
            self.draw.randrange(1 << 30),
        )
        best, bound, now, now_bound, work = found
        return self._entry(best, bound), self._entry(now, now_bound), int(work)

    def _zoomed(
        self, entry: SequenceCandidate, most: int, places: int
    ) -> tuple[SequenceCandidate, SequenceCandidate, int]:
        """`_turns` in a region of `most` operators around `places` steps of the backward."""
        inside = np.zeros(len(self.g.ops), np.bool_)
        length = len(entry.steps)
        for _ in range(places):
            # All places mark the same region: two far parts of the sequence can trade memory between them.
            region(self.g, entry.steps, self.draw.randrange(entry.boundary, length), most // places, inside)
        view = zoom(self.g, entry.steps, entry.boundary, inside)
        # Background steps take no time in the zoom, so the limits lose what runs outside.
        outside = entry.time - int(measure(view.g, view.steps, view.boundary)[1])
        climber = replace(self, g=view.g, limit_ns=self.limit_ns - outside, once=self.once - outside)
        part = SequenceCandidate(view.steps, view.boundary, entry.peak, entry.time - outside, False)
        best, now, work = climber._turns(part)
        # Zooming and putting the result back visit the whole sequence.
        work += 4 * length
        now = self._entry(*whole(self.g, entry.steps, view, now.steps, now.boundary))
        # `best` is rebuilt only for an improvement; the measure of the whole sequence decides, not that of the zoom.
        if best.time + outside < entry.time:
            best = self._entry(*whole(self.g, entry.steps, view, best.steps, best.boundary))
            if best.peak <= self.budget and not best.barred:
                return best, now if self._follows(now, best) else best, work
        return entry, now if self._follows(now, entry) else entry, work

    def _follows(self, new: SequenceCandidate, old: SequenceCandidate) -> bool:
        return new.follows(old, self.budget, self.once, self.draw)

    def _entry(self, steps: IntArray, boundary: int) -> SequenceCandidate:
        return SequenceCandidate.of(self.g, steps, boundary, self.limit_ns)


@inner
def below(state: IntArray, count: int) -> int:
    """The next random number below `count`."""
    # Written out, so that compiled and plain Python draw the same numbers; the low bits of such a generator are poor.
    state[0] = (state[0] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state[0] >> 8) % count)


@inner
def drop_repeats(g: Arrays, steps: IntArray, boundary: int, state: IntArray) -> tuple[IntArray, int]:
    """Drop some neighbouring repetitions."""
    done, count = np.zeros(len(g.ops), np.bool_), 0
    repeats, stays = np.empty(len(steps), np.int64), np.ones(len(steps), np.bool_)
    for p in range(len(steps)):
        if done[steps[p]]:
            repeats[count] = p
            count += 1
        done[steps[p]] = True
    if count == 0:
        return steps, boundary
    # Neighbouring repetitions are mostly one recomputation, whose parts depend on each other.
    width = count // PARTS[below(state, len(PARTS))] + 2
    centre, percent = below(state, count), PERCENTS[below(state, len(PERCENTS))]
    for k in range(max(centre - width // 2, 0), min(centre + width // 2 + 1, count)):
        if below(state, 100) < percent:
            stays[repeats[k]] = False
    steps, boundary = select(steps, boundary, stays)
    return drop_dead(g, steps, boundary)


@inner
def advance(g: Arrays, steps: IntArray, boundary: int, state: IntArray) -> tuple[IntArray, int]:
    """Move a tangent-free operator of the backward, with those that it needs, to where the forward has their inputs."""
    ops, storages, items, n = g.ops, g.storages, g.items, len(steps)
    first = np.full(len(ops), n, np.int64)
    for p in range(n - 1, -1, -1):
        first[steps[p]] = p
    candidates, count = np.empty(n, np.int64), 0
    for p in range(boundary, n):
        if ops[steps[p], MOVABLE] and first[steps[p]] == p:
            candidates[count] = steps[p]
            count += 1
    if count == 0:
        return steps, boundary
    moved, place = np.zeros(len(ops), np.bool_), 0
    stack, depth = np.empty(len(ops) + 1, np.int64), 1
    stack[0] = candidates[below(state, count)]
    moved[stack[0]] = True
    while depth > 0:
        depth -= 1
        op = stack[depth]
        for i in range(ops[op, READS], ops[op, WRITES]):
            maker = storages[items[i], PRODUCER]
            if maker < 0 or moved[maker]:
                continue
            if first[maker] < boundary:
                # As early as the last of all inputs allows: from there on the inputs need not live for it.
                place = max(place, first[maker] + 1)
            # An input is made in the backward by an operator that has to stay there.
            elif not ops[maker, MOVABLE]:
                return steps, boundary
            else:
                moved[maker] = True
                stack[depth] = maker
                depth += 1
    longer, k, bound = np.empty(n + len(ops), np.int64), 0, boundary
    for p in range(n):
        if p == place:
            # In the order of their numbers, which puts makers before readers.
            for op in range(len(ops)):
                if moved[op]:
                    longer[k] = op
                    k, bound = k + 1, bound + 1
        # The first executions have moved; repetitions stay, and `drop_dead` removes those that nobody needs now.
        if not moved[steps[p]] or first[steps[p]] < p:
            longer[k] = steps[p]
            k += 1
    return drop_dead(g, longer[:k].copy(), bound)


@inner
def equal(a: IntArray, b: IntArray) -> bool:
    """Whether two sequences are the same."""
    if len(a) != len(b):
        return False
    for p in range(len(a)):  # noqa: SIM110
        if a[p] != b[p]:
            return False
    return True


@compiled
def climb(
    g: Arrays, steps: IntArray, boundary: int, budget: int, limit_ns: int, once: int, turns: int, seed: int
) -> tuple[IntArray, int, IntArray, int, int]:
    """Take `turns` turns.

    Args:
        g: The problem.
        steps: A sequence that fits.
        boundary: Its boundary.
        budget: Bytes.
        limit_ns: Longest time of a sequence.
        once: Time of executing every operator once.
        turns: Number of turns.
        seed: State of the generator.

    Returns:
        The best sequence and its boundary, the last one and its boundary, and the work done (about steps visited).
    """
    state = np.full(1, seed, np.int64)
    peak, time, forbidden = measure(g, steps, boundary)
    best, best_boundary, best_time, best_peak, work = steps, boundary, time, peak, len(steps)
    now, now_boundary, now_time = steps, boundary, time
    for _ in range(turns):
        new, bound = drop_repeats(g, now, now_boundary, state)
        if below(state, ADVANCE_ONE_IN) == 0:
            new, bound = advance(g, new, bound, state)
        # Settings vary from turn to turn: no single one finds the cheapest evictions on every graph.
        share, width = SHARES[below(state, len(SHARES))], WIDTHS[below(state, len(WIDTHS))]
        noise, left = NOISES[below(state, len(NOISES))], 0
        for p in range(len(new)):
            left += g.ops[new[p], TIME]
        # The slack of 1/128 of the step lets turns that dropped little or nothing evict at all.
        most_ns = left + int((now_time - left) * WORTH) + now_time // 128
        noise_seed = below(state, 1 << 20)
        new, bound, peak, done = evict_until_fits(
            g, new, bound, budget, share, width, noise, noise_seed, PATIENCE, most_ns
        )
        work += done + 2 * len(new)
        if peak > budget or equal(new, now):
            continue
        new, bound, passes = trim(g, new, bound, budget, MAX_PASSES)
        work += 2 * passes * len(new)
        peak, time, forbidden = measure(g, new, bound)
        if peak > budget or forbidden or time > limit_ns:
            continue
        if time < best_time or (time == best_time and peak < best_peak):
            best, best_boundary, best_time, best_peak = new, bound, time, peak
        # As in `SequenceCandidate.follows`: the fourth power of a random number times the tolerance.
        chance = below(state, 1 << 20) / 1048576.0
        chance = chance * chance
        if time <= now_time + (now_time - once) * (chance * chance * TOLERANCE):
            now, now_boundary, now_time = new, bound, time
    return best, best_boundary, now, now_boundary, work
