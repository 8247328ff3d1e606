"""Plans that the verifier accepts."""

from __future__ import annotations

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.verify import verify


def check(problem: RematProblem, result: PlanResult) -> None:
    """Raise `RuntimeError` if the verifier refuses the plan for another reason than the budget."""
    assert result.plan is not None
    found = [v for v in verify(problem, result.plan, result.peak_bytes) if v.rule is not Rule.BUDGET]
    if found:
        raise RuntimeError(f"{result.planner}: {found[0]}")
