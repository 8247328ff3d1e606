"""What every planner must do on a problem."""

from __future__ import annotations

from remat_compiler.ir.plan import FITTING, PlanResult, PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify


def check_result(planner: Planner, problem: RematProblem, *, again: bool = False) -> PlanResult:
    """Check the plan, the claims and the status; and that the same comes again, if asked."""
    result = planner.plan(problem)
    assert not again or planner.plan(problem) == result, "planning twice gave two results"
    assert result.plan is not None, result.stats
    timeline = simulate(problem.graph, problem.costs, result.plan)
    assert (result.peak_bytes, result.time_ns, result.added_ns) == (
        timeline.peak_bytes,
        timeline.time_ns,
        timeline.added_ns,
    )
    over = result.peak_bytes > problem.budget_bytes
    assert (result.status is PlanStatus.INFEASIBLE) == over
    assert over or result.status in {*FITTING, PlanStatus.TIMED_OUT}
    violations = verify(problem, result.plan, result.peak_bytes)
    assert [v for v in violations if not (over and v.rule is Rule.BUDGET)] == []
    return result
