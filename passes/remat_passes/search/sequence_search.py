"""The search of `auto`: a pool of sequences, and how they are made, improved and compared."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_compiler.ir.problem import RematProblem
from remat_passes.blocks.chain import BlockOptionCache, Segmentation, cuttings
from remat_passes.blocks.segments import Flow
from remat_passes.moves.climb import Climber
from remat_passes.moves.gap_greedy import evict_until_fits
from remat_passes.moves.local_search import HOIST_STEPS, drop_repeats, hoist
from remat_passes.moves.trim import trim
from remat_passes.orders.early_order import early_orders
from remat_passes.orders.order_backward import freedom_of, reorder
from remat_passes.orders.staged_order import staged_orders
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.profile import Arrays, IntArray, arrays_of, find_live, measure
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute

GREEDY_SETTINGS = ((0.5, 1), (1.0, 1), (0.15, 1), (0.5, 2), (0.06, 1), (0.15, 0))
"""Share and width of `evict_until_fits`."""
BLOCK_COUNTS, BLOCK_TURNS = (16, 40, 90), 3
"""Numbers of blocks that the block DP tries, and turns of the search for each option of a block."""
BLOCK_PLANS = 4
"""Plans of each block DP that are trimmed."""
SMALLEST = 400
"""Least number of operators for which effort is counted."""
PATIENCE = 12
"""Rounds without a lower peak after which gap greedy gives up."""
MAX_REORDERINGS = 8
"""Times that gap greedy continues after the backward was reordered."""
MAX_PASSES = 50
MAX_IDLE, IDLE_PER_OPERATOR = 250, 10
"""Neighbours without improvement after which the local search stops: in all, and for each operator of the graph."""
RETURN_AFTER = 60
"""Turns without improvement after which the local search goes back to the best entry."""
FINALIST_TURNS = 60
"""Turns that all finalists share; only the best one goes on."""
CLIMBERS, CLIMB_SHARE, CLIMB_IDLE = 3, 0.2, 60
"""Number of sequences of different forwards that are climbed from first; the share of the work for each; `max_idle`."""
TAKEN_OVER = 8
"""Entries that are trimmed and improved for another budget."""
FINALISTS = 2
"""Sequences that the local search improves."""


@dataclass(slots=True, eq=False)
class SequenceSearch:
    """One search: call `run` once.

    Attributes:
        g: The problem as arrays.
        index: The same as lists.
        freedom: How each operator may move, see `order_backward`.
        budget: Bytes.
        limit_ns: Longest time of a plan.
        once: Time of executing every operator once, in ns.
        work_left: Work that may still be done, in steps visited.
        draw: The random numbers of the local search.
        problem: The problem itself.
        reorders: Whether the backward may run in another order than the graph's.
        pool: Entries found, best first.
        bases: Sequences of all orders that were planned on, before anything is evicted.
    """

    g: Arrays
    index: StepIndex
    freedom: IntArray
    budget: int
    limit_ns: int
    once: int
    work_left: int
    draw: random.Random
    problem: RematProblem
    reorders: bool = True
    pool: list[SequenceCandidate] = field(default_factory=list)
    bases: list[SequenceCandidate] = field(default_factory=list)

    @staticmethod
    def of(problem: RematProblem, effort: int, seed: int, reorders: bool = True) -> SequenceSearch:
        """The search for `problem` with `effort` an operator."""
        cap = problem.max_added_ns
        return SequenceSearch(
            g=arrays_of(problem),
            index=StepIndex.of(problem.graph),
            freedom=freedom_of(problem.graph),
            budget=problem.budget_bytes,
            limit_ns=(1 << 62) if cap is None else problem.costs.step_ns + cap,
            once=problem.costs.step_ns,
            work_left=effort * max(len(problem.graph.ops), SMALLEST),
            draw=random.Random(seed),
            problem=problem,
            reorders=reorders,
        )

    def run(self) -> SequenceCandidate:
        """The best entry found: within the time limit, within the budget, of least time, of lowest peak."""
        # Base sequences repeat only values that must not be saved: if one fits, the later stages have nothing to gain.
        orders = [baseline_order(self.index, placement) for placement in Placement]
        bases = self._different([self.base(order) for order in orders])
        self.keep(bases)
        if not self.solved:
            reordered = list(self._reordered(bases))
            self.keep(reordered)
            bases += reordered
        early: list[tuple[SequenceCandidate, Order]] = []
        if not self.solved:
            early = [(self.base(order), order) for order in early_orders(self.problem)]
            bases += [base for base, _ in early]
            self.keep([base for base, _ in early])
        if not self.solved:
            # Orders for plans that recompute: as they are, they need not peak lower.
            staged = staged_orders(self.g, self.index, self.freedom) if self.reorders else []
            bases = self._different([*bases, *(self.base(order) for order in staged)])
            self.bases = bases
            self.keep([self.fit(base, self.budget, *GREEDY_SETTINGS[0]) for base in bases])
            # One cache for all cuttings: equal blocks of different cuttings are solved once.
            library = BlockOptionCache(BLOCK_TURNS)
            for base, order in [*early[:1], (bases[0], orders[0])]:
                for cutting in self.cuttings(order, base, BLOCK_COUNTS):
                    self.keep(list(self.block_seeds(cutting, library, base.peak)))
            self.keep(list(self._greedy_seeds(bases)))
            self._improve()
        return self.pool[0]

    def adopt(self, entries: Iterable[SequenceCandidate]) -> SequenceCandidate:
        """The best entry, `entries` of other searches of the same graph included, improved with the work left."""
        before = self.pool[0]
        self.keep([self.trimmed(e.steps, e.boundary) for e in entries])
        # Without a new best entry there is nothing that `run` has not tried to improve already.
        if self.pool[0] is not before and self.solved:
            self._improve()
        return self.pool[0]

    def take_over(self, other: SequenceSearch) -> None:
        """Go on from the entries of another search of the same problem, instead of `run`."""
        self.bases = other.bases
        self.keep([self.trimmed(e.steps, e.boundary) for e in other.pool[:TAKEN_OVER]])
        if self.solved:
            self._improve()

    def lower(self, work: int) -> None:
        """Lower the peak of the best entries by local search, with `work`; no entry is within the budget."""
        self.work_left = work
        self._improve()

    @property
    def solved(self) -> bool:
        """Whether the pool has an entry within the budget and the time limit."""
        return self.fits(self.pool[0])

    def fits(self, entry: SequenceCandidate) -> bool:
        """Whether `entry` is within the budget and the time limit."""
        return entry.peak <= self.budget and not entry.barred

    def base(self, order: Order) -> SequenceCandidate:
        """The sequence that runs every operator once, in `order`."""
        plan = recompute(self.index, order, self.index.all_savable())
        return self._entry(np.array(plan.steps, np.int64), plan.boundary)

    def _entry(self, steps: IntArray, boundary: int) -> SequenceCandidate:
        return SequenceCandidate.of(self.g, steps, boundary, self.limit_ns)

    def rank(self, entry: SequenceCandidate) -> tuple[bool, int, int, int]:
        """Smaller is better: not barred, within the budget, fast, low."""
        # Peaks below the budget are equally good; then time decides.
        return (entry.barred, max(entry.peak, self.budget), entry.time, entry.peak)

    def keep(self, entries: list[SequenceCandidate]) -> None:
        """Add to the pool, best first."""
        self.pool = sorted([*self.pool, *entries], key=self.rank)

    def fitted(self, steps: IntArray, boundary: int) -> SequenceCandidate:
        """The sequence with values evicted until it fits, or as low as it gets, then trimmed."""
        entry = self._entry(steps, boundary)
        return self._trim(steps, boundary, self.budget) if self.fits(entry) else self.fit(entry, self.budget, 0.15, 1)

    def fit(
        self, entry: SequenceCandidate, target: int, share: float, width: int, noise: float = 0.0
    ) -> SequenceCandidate:
        """`entry` with values evicted to `target` bytes, or as low as it gets, then trimmed."""
        new = self._evict(entry.steps, entry.boundary, target, share, width, noise)
        for _ in range(MAX_REORDERINGS):
            if new.peak <= target or self.solved:
                break
            steps, lower = self._reorder(new.steps, new.boundary, target, new.peak)
            if not lower:
                break
            new = self._evict(steps, new.boundary, target, share, width, noise)
        return new

    def _evict(
        self, steps: IntArray, boundary: int, target: int, share: float, width: int, noise: float
    ) -> SequenceCandidate:
        """`fit` with the backward as it stands."""
        peak = 0
        # Eviction stalls at a peak that a recomputation itself makes: hoisting that one lets it go on.
        for _ in range(8):
            seed = self.draw.randrange(1 << 30)
            args = (share, width, noise, seed, PATIENCE, 1 << 62)
            steps, boundary, peak, work = evict_until_fits(self.g, steps, boundary, target, *args)
            self.work_left -= int(work)
            if peak <= target:
                break
            steps, boundary, moved, work = hoist(self.g, steps, boundary, HOIST_STEPS)
            self.work_left -= int(work)
            if not moved:
                break
        # If the target was missed, trim must at least not raise the peak.
        return self._trim(steps, boundary, max(target, int(peak)))

    def _reorder(self, steps: IntArray, boundary: int, target: int, peak: int) -> tuple[IntArray, bool]:
        """`steps` with the backward in an order of lower peak, and whether it is lower than `peak`."""
        if not self.reorders:
            return steps, False
        better, work = reorder(self.g, self.freedom, steps, boundary, target)
        self.work_left -= work
        return better, int(measure(self.g, better, boundary)[0]) < peak

    def reordered(self, order: Order) -> list[Order]:
        """`order` with its backward in an order of lower peak; empty if there is none or `reorders` is off."""
        base = self.base(order)
        steps, lower = self._reorder(base.steps, base.boundary, self.budget, base.peak)
        bound = base.boundary
        return [Order(tuple(steps[:bound].tolist()), tuple(steps[bound:].tolist()))] if lower else []

    def _reordered(self, entries: list[SequenceCandidate]) -> Iterator[SequenceCandidate]:
        """Those of `entries` that peak lower in another order of the backward, in that order."""
        for entry in entries:
            steps, lower = self._reorder(entry.steps, entry.boundary, self.budget, entry.peak)
            if lower:
                yield self._entry(steps, entry.boundary)

    def trimmed(self, steps: IntArray, boundary: int) -> SequenceCandidate:
        """The trimmed sequence; it may be over the budget."""
        return self._trim(steps, boundary, max(self.budget, self._entry(steps, boundary).peak))

    def _trim(self, steps: IntArray, boundary: int, target: int) -> SequenceCandidate:
        """The sequence trimmed to `target` bytes."""
        steps, boundary, passes = trim(self.g, steps, boundary, target, MAX_PASSES)
        self.work_left -= 4 * int(passes) * len(steps)
        return self._entry(steps, boundary)

    def _greedy_seeds(self, bases: list[SequenceCandidate]) -> Iterator[SequenceCandidate]:
        """Gap greedy in several settings."""
        # The other half is for the improvement of the seeds.
        enough = self.work_left // 2
        for share, width in GREEDY_SETTINGS[1:]:
            for base in bases:
                if self.work_left > enough:
                    yield self.fit(base, self.budget, share, width)

    def cuttings(self, order: Order, base: SequenceCandidate, counts: Sequence[int]) -> list[Segmentation]:
        """The blocks of `order`, whose sequence is `base`, for each of `counts`."""
        if not order.forward:
            return []
        live = find_live(self.g, base.steps, base.boundary)
        flow = Flow(self.g, np.array(order.forward, np.int64), np.array(order.backward, np.int64), live)
        return cuttings(self.g, flow, counts)

    def block_seeds(
        self, cutting: Segmentation, library: BlockOptionCache, highest: int
    ) -> Iterator[SequenceCandidate]:
        """Plans of the block DP, those over the budget finished by gap greedy; `highest`: see `sequences`."""
        before = library.work
        chain = cutting.chain(library)
        raw = [self._entry(*found) for found in chain.sequences(self.budget, highest)]
        self.work_left -= library.work - before + chain.work + 3 * sum(len(entry.steps) for entry in raw)
        for entry in sorted((entry for entry in raw if self.fits(entry)), key=self.rank)[:BLOCK_PLANS]:
            yield self._trim(entry.steps, entry.boundary, self.budget)
        over = [entry for entry in raw if not self.fits(entry)]
        # The DP's peaks are estimates, so plans a little over the budget are often the better ones once gap greedy
        # has finished them.
        for entry in sorted(over, key=self._promise)[:2]:
            if self.work_left > 0:
                yield self.fit(entry, self.budget, 0.15, 1)

    def _promise(self, entry: SequenceCandidate) -> tuple[float, int]:
        """How good an entry may become: its time, raised by the share of its peak over the budget."""
        over = max(entry.peak - self.budget, 0) / max(self.budget, 1)
        return (entry.time * (1.0 + 2.0 * over), entry.peak)

    def _climb(self) -> None:
        """Climb from the best entry and from the best ones of other forwards for a while, then from the best result."""
        climber = Climber(self.g, self.budget, self.limit_ns, self.once, self.draw)
        starts: dict[int, SequenceCandidate] = {}
        for entry in self.pool:
            if self.fits(entry):
                # The boundary is the number of steps in the forward, a cheap sign of a different forward; the pool is
                # sorted, so the best one stays.
                starts.setdefault(entry.boundary, entry)
        share, found = int(CLIMB_SHARE * self.work_left), []
        for entry in list(starts.values())[:CLIMBERS]:
            best, left = climber.run(entry, share, CLIMB_IDLE)
            self.work_left -= share - left
            found.append(best)
        best, self.work_left = climber.run(min(found, key=self.rank), self.work_left)
        self.keep([best, *found])

    def _improve(self) -> None:
        """Local search on the best entries: drop some repetitions, fit again, keep the result if it is not worse."""
        if self.solved:
            self._climb()
            return
        # Nothing fits: the same search now lowers the peak, see `rank` and `_neighbour`.
        current = self._distinct()[:FINALISTS]
        best = current[0]
        turn, idle, most = 0, 0, min(MAX_IDLE, IDLE_PER_OPERATOR * len(self.g.ops))
        while self.work_left > 0 and idle < most:
            if turn == FINALIST_TURNS:
                current = [min(current, key=self.rank)]
            which = turn % len(current)
            new = self._neighbour(current[which])
            turn += 1
            idle += 1
            if self.rank(new) < self.rank(best):
                best, idle = new, 0
            old = current[which]
            if self.rank(new) <= self.rank(old) or new.follows(old, self.budget, self.once, self.draw):
                current[which] = new
            elif idle % RETURN_AFTER == 0:
                current[which] = best
        self.keep([best, *current])

    def _different(self, entries: list[SequenceCandidate]) -> list[SequenceCandidate]:
        """`entries` without those that have the steps of an earlier one."""
        found: dict[tuple[bytes, int], SequenceCandidate] = {}
        for entry in entries:
            found.setdefault((entry.steps.tobytes(), entry.boundary), entry)
        return list(found.values())

    def _distinct(self) -> list[SequenceCandidate]:
        """Entries of the pool that differ in peak or time."""
        found: dict[tuple[int, int], SequenceCandidate] = {}
        for entry in self.pool:
            # As `rank` sees them: below the budget the peak makes no difference.
            found.setdefault((max(entry.peak, self.budget), entry.time), entry)
        return list(found.values())

    def _neighbour(self, entry: SequenceCandidate) -> SequenceCandidate:
        """A random neighbour of `entry`."""
        draw, count = self.draw, len(self.g.ops)
        percent = draw.choice((30, 60, 100, 100))
        # Mostly a window of operators around a random one, of random width; else all of them.
        low, high = 0, count
        if draw.random() < 0.7:
            centre, width = draw.randrange(count), draw.choice((count // 50, count // 20, count // 8, count // 3)) + 1
            low, high = centre - width, centre + width
        steps, boundary = drop_repeats(self.g, entry.steps, entry.boundary, percent, low, high, draw.randrange(1 << 30))
        self.work_left -= 2 * len(steps)
        # Over the budget, one byte less is progress.
        target = self.budget if entry.peak <= self.budget else entry.peak - 1
        share, width = draw.choice((0.5, 1.0, 1.0)), draw.choice((0, 1, 1, 2))
        # Only steps and boundary are read; the other figures are those of `entry`.
        loose = SequenceCandidate(steps, int(boundary), entry.peak, entry.time, entry.barred)
        return self.fit(loose, target, share, width, draw.choice((0.0, 0.3, 1.0, 3.0)))
