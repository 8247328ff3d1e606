"""JSON of graphs, cost tables, problems, plans and results: canonical, versioned, checked when read.

`codec` does the writing and the types; this file says which documents there are and what must hold between
their parts, so that whatever `loads` returns can be simulated and verified without further checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from remat_compiler.errors import FormatError, InvalidGraph
from remat_compiler.ir.codec import from_document, to_document
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.invariants import graph_defects
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import CostTable, RematProblem

Document = TypeVar("Document", TrainingGraph, CostTable, RematProblem, Plan, PlanResult)


def dumps(value: TrainingGraph | CostTable | RematProblem | Plan | PlanResult) -> str:
    """The canonical JSON of `value`: equal values give equal text, in any process."""
    form = _FORMS[type(value)]
    return to_document(form.kind, form.version, value)


def loads(cls: type[Document], text: str | bytes) -> Document:
    """The `cls` that `text` describes.

    Raises:
        FormatError: It describes none; the message starts with the place, such as ``$.data.ops[3].reads``.
    """
    form = _FORMS[cls]
    value = from_document(form.kind, form.version, cls, text)
    form.check(value)
    return value


def _check_graph(graph: TrainingGraph, place: str = "$.data") -> None:
    defects = graph_defects(graph)
    if defects:
        raise FormatError(place, str(InvalidGraph(defects)))


def _check_costs(costs: CostTable, place: str = "$.data") -> None:
    lengths = {len(costs.time_ns), len(costs.workspace_bytes), len(costs.provenance)}
    if len(lengths) != 1:
        raise FormatError(place, f"time_ns, workspace_bytes and provenance differ in length: {sorted(lengths)}")
    for i, value in enumerate(costs.time_ns):
        if value < 0:
            raise FormatError(f"{place}.time_ns[{i}]", f"expected at least 0, got {value}")


def _check_plan(plan: Plan, place: str = "$.data", num_ops: int | None = None) -> None:
    if not 0 <= plan.boundary <= len(plan.steps):
        raise FormatError(f"{place}.boundary", f"expected 0 to {len(plan.steps)}, got {plan.boundary}")
    for i, op_id in enumerate(plan.steps):
        if op_id < 0 or (num_ops is not None and op_id >= num_ops):
            top = "" if num_ops is None else f" and below {num_ops}"
            raise FormatError(f"{place}.steps[{i}]", f"expected at least 0{top}, got {op_id}")


def _check_problem(problem: RematProblem) -> None:
    _check_graph(problem.graph, "$.data.graph")
    _check_costs(problem.costs, "$.data.costs")
    num_ops = len(problem.graph.ops)
    if len(problem.costs.time_ns) != num_ops:
        raise FormatError(
            "$.data.costs.time_ns", f"expected {num_ops} (one for each op), got {len(problem.costs.time_ns)}"
        )
    if problem.budget_bytes < 0:
        raise FormatError("$.data.budget_bytes", f"expected at least 0, got {problem.budget_bytes}")
    if problem.reference is not None:
        _check_plan(problem.reference, "$.data.reference", num_ops)


def _check_result(result: PlanResult) -> None:
    if result.plan is not None:
        _check_plan(result.plan, "$.data.plan")
    for name in ("peak_bytes", "time_ns", "added_ns", "lower_bound_ns"):
        value = getattr(result, name)
        if value < 0:
            raise FormatError(f"$.data.{name}", f"expected at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class _Form:
    """One kind of document; `version` rises with every change of the dataclasses in it."""

    kind: str
    version: int
    check: Callable[[Any], None]


_FORMS: dict[type, _Form] = {
    TrainingGraph: _Form("graph", 1, _check_graph),
    CostTable: _Form("costs", 1, _check_costs),
    RematProblem: _Form("problem", 1, _check_problem),
    Plan: _Form("plan", 1, _check_plan),
    PlanResult: _Form("plan-result", 1, _check_result),
}
