"""One planned chain, and the report of it, for the tests of what people are shown."""

from __future__ import annotations

from drawn_graphs import chain, joint_plan
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.report.build import build_report
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.simulate.timeline import simulate

SIZES = (4096, 1024, 4096, 1024)


def problem(budget_bytes: int = 12_000, time_ns: int = 1000) -> RematProblem:
    """A chain of four values; keeping all peaks at 15,364 bytes."""
    graph = chain(SIZES)
    n = len(graph.ops)
    costs = CostTable((time_ns,) * n, (0,) * n, ("roofline",) * n)
    return RematProblem(graph, costs, budget_bytes, None, joint_plan(graph))


def result(asked: RematProblem | None = None) -> PlanResult:
    """The plan that makes f0 again in the backward, in place of keeping it."""
    asked = asked or problem()
    plan = Plan(tuple(OpId(i) for i in (0, 1, 2, 3, 4, 5, 0, 6, 7)), 4)
    made = simulate(asked.graph, asked.costs, plan)
    return PlanResult(PlanStatus.FEASIBLE, "chen_sqrt", plan, made.peak_bytes, made.time_ns, made.added_ns, 0)


def report(asked: RematProblem | None = None, graph_name: str = "graph0") -> PlanReport:
    """The report of `result`."""
    asked = asked or problem()
    return build_report(
        asked,
        result(asked),
        graph_name=graph_name,
        joint_nodes=20,
        inner="eager",
        stages=[("capture", 0.25), ("plan", 0.5)],
        notes=["a note"],
    )
