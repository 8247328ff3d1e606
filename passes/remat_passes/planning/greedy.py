"""Bytes per nanosecond: drop the value that frees most of the peak for the least time, then improve by swaps.

The simplest honest planner: it chooses a set of values that the forward saves; everything else is recomputed just
before the backward first reads it.  From all values saved:

    drop     of the values that lie idle across the highest step, the one of most bytes for the least time of the
             operators that would run again for it, until the peak fits
    restore  a dropped value that fits after all
    swap     a dropped value for others: save it, drop again until the peak fits, keep the cheaper set

The rule is that of a greedy knapsack (Dantzig, *Discrete-Variable Extremum Problems*, 1957) with the simulator's peak
in the place of a sum of weights.  A round drops several values, until they cover a tenth of the excess, so that large
graphs take tens of rounds and not thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import MemoryTimeline, simulate_arrays
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.profile import BoolArray, IntArray
from remat_passes.sequences.sequence import (
    Order,
    Placement,
    StepIndex,
    baseline_order,
    recompute,
    recompute_closure,
)

SHARE = 10
"""A round covers one in so many bytes of the excess."""
MAX_ROUNDS = 400


@dataclass(frozen=True, slots=True)
class Greedy:
    """Drop saved values by bytes per nanosecond until the peak fits, then restore and swap.

    Attributes:
        effort: Steps of all simulated plans together, after which restoring and swapping stop.
        shortlist: Values whose exact price is found in a round: those that rate best by their own producer's time.
    """

    name: ClassVar[str] = "greedy"
    effort: int = 400_000
    shortlist: int = 48

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest set that fits the budget, or else the one of the smallest peak; the stats say how many steps."""
        found, steps = [], 0
        for placement in Placement:
            search = _Search(problem, placement, self.effort // 2, self.shortlist)
            found += [Candidate(plan, (("placement", placement.value),)) for plan in search.run()]
            steps += self.effort // 2 - search.work_left
        result = choose(problem, self.name, found)
        return replace(result, stats=(*result.stats, ("steps", str(steps))))


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A set of saved values with its plan and the simulated timeline of that plan."""

    saved: BoolArray
    plan: Plan
    timeline: MemoryTimeline


class _Search:
    """The search for one placement of tangent-free operators."""

    def __init__(self, problem: RematProblem, placement: Placement, effort: int, shortlist: int) -> None:
        self.budget = problem.budget_bytes
        self.index = StepIndex.of(problem.graph)
        self.order: Order = baseline_order(self.index, placement)
        self.arrays = GraphArrays.of(problem.graph, problem.costs)
        self.time_ns = problem.costs.time_ns
        self.work_left = effort
        self.shortlist = shortlist
        self.always = np.array(self.index.always_at_hand(), np.bool_)
        # What must not be saved is recomputed anyway, and a value of no bytes frees nothing.
        self.may_drop = np.zeros(len(self.always), np.bool_)
        for op in self.order.forward:
            for s in self.index.writes[op]:
                self.may_drop[s] = not self.always[s] and not self.index.unsavable[s] and self.index.size_bytes[s] > 0

    def run(self) -> list[Plan]:
        """The set that saves all, the one of the lowest peak on the way down, and the improved one."""
        first = self._state(np.array(self.index.all_savable(), np.bool_))
        lowest = best = self._drop(first)
        if best.timeline.peak_bytes <= self.budget:
            best = self._improve(best)
        # Saving all adds least time: if nothing fits, only it may keep to `max_added_ns`.
        return [first.plan, lowest.plan, best.plan]

    def _state(self, saved: BoolArray) -> _State:
        plan = recompute(self.index, self.order, saved.tolist())
        self.work_left -= len(plan.steps)
        return _State(saved, plan, simulate_arrays(self.arrays, np.array(plan.steps, np.int64), plan.boundary))

    def _drop(self, state: _State, spared: int = -1) -> _State:
        """`state` with values dropped until it fits, or the lowest on the way; storage `spared` stays."""
        lowest = state
        for _ in range(MAX_ROUNDS):
            excess = state.timeline.peak_bytes - self.budget
            if excess <= 0:
                return state
            saved, covered = state.saved.copy(), 0
            for s in self._by_rate(state, excess, spared):
                saved[s] = False
                covered += self.index.size_bytes[s]
                if SHARE * covered >= excess:
                    break
            # No saved value lies idle across the peak: dropping cannot lower it.
            if not covered:
                break
            # The peak may rise on the way: values recomputed at one place meet.  So the lowest state is kept.
            state = self._state(saved)
            if state.timeline.peak_bytes < lowest.timeline.peak_bytes:
                lowest = state
        return lowest

    def _by_rate(self, state: _State, excess: int, spared: int) -> list[int]:
        """Saved values that lie idle across the highest step, those of most bytes for the least time first."""
        idle = [s for s in self._idle(state).tolist() if s != spared]
        sizes, producer = self.index.size_bytes, self.index.producer
        # A first price without the closure, which is costly; plus one, since a view may take no time.
        own = {s: min(sizes[s], excess) / (self.time_ns[producer[s]] + 1) for s in idle}
        short = sorted(idle, key=lambda s: (-own[s], s))[: self.shortlist]
        at_hand = (state.saved | self.always).tolist()
        rates = {}
        for s in short:
            # Try one value as dropped, then put it back.
            at_hand[s] = False
            again = recompute_closure(self.index, [s], at_hand)
            at_hand[s] = True
            rates[s] = min(sizes[s], excess) / (sum(self.time_ns[op] for op in again) + 1)
        return sorted(short, key=lambda s: (-rates[s], s))

    def _idle(self, state: _State) -> IntArray:
        """Saved values alive at the highest step, between the forward's last use of them and the backward's first."""
        lives, peak = state.timeline.instances, state.timeline.peak_step
        boundary = state.plan.boundary
        # Saved and alive at the peak: made before it and read after it, in the backward.
        crossing = (lives.start < min(peak, boundary)) & (lives.last > peak) & (lives.last >= boundary)
        alive = np.zeros(len(state.saved), np.bool_)
        alive[lives.storage[crossing]] = True
        alive &= self.may_drop & state.saved
        steps = state.plan.steps
        # Between the peak and the boundary a read by either part needs the value, so dropping it lowers nothing.
        low, high = min(peak, boundary), max(peak + 1, boundary)
        for op in steps[low:high]:
            alive[self.index.reads[op]] = False
        return np.flatnonzero(alive)

    def _improve(self, best: _State) -> _State:
        """Restore and swap dropped values, the dearest first, until a turn changes nothing or the work is done."""
        # A swap can make another one possible, so turns go on until one changes nothing.
        changed = True
        while changed and self.work_left > 0:
            changed = False
            dropped = np.flatnonzero(self.may_drop & ~best.saved).tolist()
            dropped.sort(key=lambda s: (-self.time_ns[self.index.producer[s]], s))
            for s in dropped:
                if self.work_left <= 0:
                    break
                saved = best.saved.copy()
                saved[s] = True
                # If it fits at once, it is restored; else others are dropped for it, which is a swap.
                new = self._drop(self._state(saved), spared=s)
                if new.timeline.peak_bytes <= self.budget and new.timeline.time_ns < best.timeline.time_ns:
                    best, changed = new, True
        return best
