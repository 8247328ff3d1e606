"""DELTA: release values while the forward fills the memory, by recomputation or by offload, and prefetch.

Source: *DELTA: Dynamically Optimizing GPU Memory beyond Tensor Recomputation*; Algorithm 1 for the whole, equations 1
to 3 and Algorithm 2 for the Filter, equations 4 to 6 and Algorithm 3 for the Director, Algorithm 4 for the Prefetcher.
The run is simulated ahead of time, operator by operator (`DeltaForward`), and so is the prefetching (`prefetch`); the
trace is the plan.

Where we deviate: what the forward reads again is not released, since a graph knows its future; where a plan peaks above
the budget, because the backward releases nothing, the release starts earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.transfers import transfer_lives, transfer_times
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.delta_forward import FILTERS, DeltaForward
from remat_passes.policies.policy import MOVE, RECOMPUTE
from remat_passes.policies.prefetcher import prefetched
from remat_passes.policies.space import PolicySpace
from remat_passes.sequences.profile import IntArray
from remat_passes.sequences.sequence import recompute_closure

EARLIER = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
"""Parts of `Delta.start` at which the release starts, until a plan fits."""


@dataclass(frozen=True, slots=True)
class Delta:
    """DELTA's Filter, Director and Prefetcher.

    Attributes:
        heuristic: What the Filter releases first: ``"base"`` (large and stale), ``"lru"`` (stale), ``"greedy"``
            (large).
        start: Part of the budget in use at which the release starts.
        bandwidth_share: Part of the bandwidth that the Director counts on.
        reloads: Most values that are prefetched and not yet used.
        overlaps: Whether copies run beside the step; otherwise each is waited for at once.
    """

    name: ClassVar[str] = "delta"
    heuristic: str = "base"
    start: float = 0.75
    bandwidth_share: float = 0.35
    reloads: int = 8
    overlaps: bool = True

    def plan(self, problem: RematProblem) -> PlanResult:
        """The trace that fits the budget and costs least, or else the one of the smallest peak."""
        if self.heuristic not in FILTERS:
            raise ValueError(f"heuristic={self.heuristic!r}; choose one of {', '.join(FILTERS)}")
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """Keeping everything, and a trace for each placement of tangent-free operators and start."""
        for space in PolicySpace.of_all(problem):
            yield Candidate(space.kept)
            for part in EARLIER:
                found = self._trace(space, self.start * part)
                yield Candidate(found, (("start", f"{self.start * part:.2f}"),))
                if simulate(problem.graph, problem.costs, found).peak_bytes <= problem.budget_bytes:
                    break

    def _trace(self, space: PolicySpace, start: float) -> Plan:
        """The plan of one run."""
        actions = DeltaForward(space, self.heuristic, start, self.bandwidth_share).run()
        # Made once for all the plans that are tried.
        arrays = GraphArrays.of(space.problem.graph, space.problem.costs)
        plan = self._with_copies(space, arrays, actions)
        # A value whose reload would be waited for is recomputed where that is cheaper.
        for _ in range(len(actions)):
            late = self._cheaper_again(space, arrays, actions, plan)
            if not late:
                break
            actions[late] = RECOMPUTE
            plan = self._with_copies(space, arrays, actions)
        return plan

    def _with_copies(self, space: PolicySpace, arrays: GraphArrays, actions: IntArray) -> Plan:
        """The plan of a policy with DELTA's own times of copies."""
        plan = space.plan(actions)
        if self.overlaps:
            return prefetched(arrays, plan, self.reloads, space.problem.budget_bytes)
        # Out at once, and back when it is needed.
        lives = transfer_lives(arrays, plan.steps, plan.boundary, plan.transfers)
        last = {s: step for step, op in enumerate(plan.steps[: plan.boundary]) for s in space.index.reads[op]}
        transfers = tuple(
            replace(one, out_after=max(last.get(one.storage, 0), life.begun) + 1, back_before=life.read)
            for one, life in zip(plan.transfers, lives)
        )
        return replace(plan, transfers=transfers)

    def _cheaper_again(self, space: PolicySpace, arrays: GraphArrays, actions: IntArray, plan: Plan) -> list[int]:
        """The first moved value, in order of use, that the step waits longer for than recomputing it takes; or none."""
        index = space.index
        steps = np.array(plan.steps, np.int64)
        begins = np.concatenate(([0], np.cumsum(arrays.time_ns[steps])))
        copies = transfer_times(arrays, steps, plan.boundary, plan.transfers).copies
        lives = transfer_lives(arrays, steps, plan.boundary, plan.transfers)
        which = {int(s): v for v, s in enumerate(space.policies.values)}
        saved = index.all_savable()
        for v in np.flatnonzero(actions == RECOMPUTE).tolist():
            saved[space.policies.values[v]] = False
        held = [kept or hand for kept, hand in zip(saved, index.always_at_hand())]
        late = 0
        for i in sorted(range(len(lives)), key=lambda i: (lives[i].read, i)):
            v, storage = which[plan.transfers[i].storage], plan.transfers[i].storage
            wait = copies[i].back_end_ns - int(begins[lives[i].read]) - late
            late += max(wait, 0)
            if wait <= 0 or actions[v] != MOVE or not space.policies.allowed[v, RECOMPUTE]:
                continue
            at_hand = held.copy()
            at_hand[storage] = False
            if sum(space.problem.costs.time_ns[op] for op in recompute_closure(index, [storage], at_hand)) < wait:
                return [v]
        return []
