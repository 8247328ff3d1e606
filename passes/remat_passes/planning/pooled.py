"""How traces that were run in a pool become a `PlanResult`; see `eviction.traces` for what "fits" means."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.ir.plan import FITTING, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.traces import PoolTrace
from remat_passes.planning.interface import Candidate, choose


def choose_trace(problem: RematProblem, planner: str, traces: Sequence[PoolTrace]) -> PlanResult:
    """The best of `traces`: of those that fit their pool if one of them is within the budget, else of all."""
    fitting = choose(problem, planner, [Candidate(trace.plan, trace.stats) for trace in traces if trace.fits])
    if fitting.status in FITTING:
        return fitting
    return choose(problem, planner, [Candidate(trace.plan, trace.stats) for trace in traces])
