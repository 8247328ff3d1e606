"""How a planner's plan becomes a `PlanResult`: by the one simulator, never by its own estimate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate_arrays
from remat_compiler.simulate.transfers import moved_bytes

Stats = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with the statistics that its planner reports with it."""

    plan: Plan
    stats: Stats = ()


def finish(problem: RematProblem, planner: str, plan: Plan, stats: Stats = ()) -> PlanResult:
    """The result of `planner` that found `plan`: FEASIBLE within the budget, else INFEASIBLE."""
    return choose(problem, planner, [Candidate(plan, stats)])


def choose(problem: RematProblem, planner: str, candidates: Iterable[Candidate]) -> PlanResult:
    """The best of `candidates`: the cheapest within the budget, or else the one of the smallest peak.

    Plans within `max_added_ns` go before others; the first of equals wins.  A plan that moves more than there is room
    for is none.
    """
    arrays = GraphArrays.of(problem.graph, problem.costs)
    able = (one for one in candidates if moved_bytes(problem.graph, one.plan) <= problem.offload_bytes)
    results = (_judge(problem, arrays, planner, candidate) for candidate in able)
    best = min(results, key=lambda result: _rank(problem, result), default=None)
    return failed(planner, "the planner proposed no plan") if best is None else best


def failed(planner: str, reason: str) -> PlanResult:
    """The result of a planner that has no plan for this problem."""
    return PlanResult(PlanStatus.FAILED, planner, None, stats=(("reason", reason),))


def _judge(problem: RematProblem, arrays: GraphArrays, planner: str, candidate: Candidate) -> PlanResult:
    """Simulate one candidate."""
    plan = candidate.plan
    timeline = simulate_arrays(arrays, np.array(plan.steps, np.int64), plan.boundary, plan.transfers)
    fits = timeline.peak_bytes <= problem.budget_bytes
    return PlanResult(
        status=PlanStatus.FEASIBLE if fits else PlanStatus.INFEASIBLE,
        planner=planner,
        plan=candidate.plan,
        peak_bytes=timeline.peak_bytes,
        time_ns=timeline.time_ns,
        added_ns=timeline.added_ns,
        stats=candidate.stats,
    )


def _rank(problem: RematProblem, result: PlanResult) -> tuple[bool, bool, int, int]:
    """Smaller is better, see `choose`."""
    # Among plans that miss the budget the peak comes first, since none is usable and the nearest tells most.
    misses = result.status is PlanStatus.INFEASIBLE
    slow = problem.max_added_ns is not None and result.added_ns > problem.max_added_ns
    first, second = result.added_ns, result.peak_bytes
    return (misses, slow, second, first) if misses else (misses, slow, first, second)
