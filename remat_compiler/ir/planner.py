"""The interface of planners."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem


@runtime_checkable
class Planner(Protocol):
    """One way to answer a `RematProblem`.

    A planner is a frozen dataclass whose fields are its options, each with a default.  `plan` is pure and
    deterministic: the same problem gives the same plan in any process.  It mutates nothing, imports no
    torch, and its plan passes `remat_compiler.simulate.verify.verify`.  An attribute `refuses_smaller_alike` says that
    INFEASIBLE comes with the same plan for every smaller budget.
    """

    name: ClassVar[str]
    """Its name in options and reports."""

    def plan(self, problem: RematProblem) -> PlanResult:
        """Answer `problem`; INFEASIBLE carries the plan of the smallest peak found."""
        ...
