"""Capuchin: move what hides beside the step first, then whichever of moving and recomputing costs less.

Source: Peng et al., *Capuchin: Tensor-based GPU Memory Management for Deep Learning*, ASPLOS 2020, as the papers of
HOME (section 4.1) and DELTA (section 2) describe it.  Values that are idle while memory is short are candidates.

    free time   from the end of a value's copy out to the begin of its copy back, if both ran alone
    MSPS        memory saving per second: bytes of a value over the time of recomputing it

The value of the largest free time is moved, one after the other, for as long as that costs nothing.  Then the next
value by free time and the next one by MSPS are compared, and the one that costs less is moved or recomputed.  It ends
when the step fits, and looks neither back nor ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.decode import measure_policy
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE
from remat_passes.policies.space import PolicySpace
from remat_passes.sequences.profile import IntArray


@dataclass(frozen=True, slots=True)
class Capuchin:
    """Capuchin's greedy choice, with costs from the simulator in place of measured ones."""

    name: ClassVar[str] = "capuchin"

    def plan(self, problem: RematProblem) -> PlanResult:
        """The policy at which the choice ends, or the one of the lowest peak on the way."""
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """Keeping everything, and the choice, for each placement of tangent-free operators."""
        for space in PolicySpace.of_all(problem):
            yield Candidate(space.kept)
            yield Candidate(space.plan(_Choice(space).run()))


class _Choice:
    """The choice for one order of the step."""

    def __init__(self, space: PolicySpace) -> None:
        self.space, self.p = space, space.policies
        plan = space.kept
        timeline = simulate(space.problem.graph, space.problem.costs, plan)
        idle_ns = _idle_ns(space, plan, timeline)
        self.idle = {v for v, time_ns in enumerate(idle_ns) if time_ns >= 0}
        copies_ns = self.p.out_ns[self.p.values] + self.p.back_ns[self.p.values]
        self.free_ns = {v: idle_ns[v] - int(copies_ns[v]) for v in self.idle}

    def run(self) -> IntArray:
        """The policy."""
        actions = self.space.all_of(KEEP)
        peak, cost, _ = measure_policy(self.p, actions)
        lowest, best = peak, actions
        by_saving = self._by_saving()
        by_free_time = sorted(self.idle, key=lambda v: (-self.free_ns[v], v))
        while peak > self.p.budget_bytes:
            found = [*self._next(actions, by_free_time, MOVE), *self._next(actions, by_saving, RECOMPUTE)]
            if not found:
                break
            # A move that costs nothing goes first; of equal costs, too.
            trials = [(*measure_policy(self.p, trial)[:2], trial) for trial in found]
            peak, cost, actions = min(trials, key=lambda trial: trial[1] - cost)
            if peak < lowest:
                lowest, best = peak, actions
        return best

    def _next(self, actions: IntArray, queue: list[int], action: int) -> Iterator[IntArray]:
        """The policy in which the first value of `queue` that is still kept has `action`."""
        room = self.p.room_bytes - int(self.p.pages_bytes[self.p.values[actions == MOVE]].sum())
        for v in queue:
            fits = action != MOVE or self.p.pages_bytes[self.p.values[v]] <= room
            if actions[v] == KEEP and self.p.allowed[v, action] and fits:
                trial = actions.copy()
                trial[v] = action
                yield trial
                return

    def _by_saving(self) -> list[int]:
        """Candidates, those that save most memory per second first."""
        sizes = self.space.index.size_bytes
        rates = {}
        for v in self.idle:
            if self.p.allowed[v, RECOMPUTE]:
                alone = self.space.all_of(KEEP)
                alone[v] = RECOMPUTE
                rates[v] = sizes[self.p.values[v]] / (measure_policy(self.p, alone)[1] + 1)
        return sorted(rates, key=lambda v: (-rates[v], v))


def _idle_ns(space: PolicySpace, plan: Plan, timeline: MemoryTimeline) -> list[int]:
    """For each value, the time from its last use in the forward to its first in the backward; -1 where it is in use
    whenever memory is short."""
    begins = np.concatenate(([0], np.cumsum(np.array(space.problem.costs.time_ns, np.int64)[list(plan.steps)])))
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, op in enumerate(plan.steps):
        uses = (*space.index.reads[op], *space.index.writes[op])
        for s in uses:
            if step < plan.boundary:
                last[s] = step
            else:
                first.setdefault(s, step)
    short = np.flatnonzero(timeline.live_bytes > space.problem.budget_bytes)
    found = []
    for s in space.policies.values.tolist():
        idle = ((short > last[s]) & (short < first[s])).any()
        found.append(int(begins[first[s]] - begins[last[s] + 1]) if idle else -1)
    return found
