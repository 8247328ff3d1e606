"""JSON of graphs, cost tables, problems, plans and results: canonical, versioned, checked when read.

`codec` does the writing and the types; this file lists the kinds of documents and checks the invariants between
their parts, so that whatever `loads` returns can be simulated and verified without further checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
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


LARGEST_SUM = 2**62 - 1
"""Largest sum over a whole graph, so that 64 bits hold every figure of every plan of a sane length."""
LARGEST_LIMIT = 2**63 - 1
"""Largest budget and largest added time, which mean no limit at all."""


def _check_sum(values: Iterable[int], what: str, place: str) -> None:
    # Workspaces may be negative, so a plain sum could hide figures too large for 64 bits.
    total = sum(map(abs, values))
    if total > LARGEST_SUM:
        raise FormatError(place, f"{what} sum up to {total}, more than {LARGEST_SUM}")


def _check_limit(value: int, place: str) -> None:
    if not 0 <= value <= LARGEST_LIMIT:
        bound = "at least 0" if value < 0 else f"at most {LARGEST_LIMIT}"
        raise FormatError(place, f"expected {bound}, got {value}")


def _check_graph(graph: TrainingGraph, place: str = "$.data") -> None:
    defects = graph_defects(graph)
    if defects:
        raise FormatError(place, str(InvalidGraph(defects)))
    _check_sum((s.size_bytes for s in graph.storages), "the sizes in bytes", f"{place}.storages")


def _check_costs(costs: CostTable, place: str = "$.data") -> None:
    lengths = {len(costs.time_ns), len(costs.workspace_bytes), len(costs.provenance)}
    if len(lengths) != 1:
        raise FormatError(place, f"time_ns, workspace_bytes and provenance differ in length: {sorted(lengths)}")
    for i, value in enumerate(costs.time_ns):
        if value < 0:
            raise FormatError(f"{place}.time_ns[{i}]", f"expected at least 0, got {value}")
    for i, link in enumerate(costs.links):
        if link.out_bytes_per_s < 1 or link.back_bytes_per_s < 1 or min(link.latency_ns, link.begin_ns) < 0:
            raise FormatError(f"{place}.links[{i}]", "expected bandwidths of at least 1, and no time below 0")
        times = [(0, link.latency_ns, link.latency_ns), *((c.size_bytes, c.out_ns, c.back_ns) for c in link.curve)]
        if any(a[0] >= b[0] or a[1] > b[1] or a[2] > b[2] or not b[1] or not b[2] for a, b in pairwise(times)):
            raise FormatError(f"{place}.links[{i}].curve", "expected ascending sizes, and times that never fall")
        if link.tier in [other.tier for other in costs.links[:i]]:
            raise FormatError(f"{place}.links[{i}].tier", f"expected each tier once, got {link.tier.value!r} again")
    _check_sum(costs.time_ns, "the times in nanoseconds", f"{place}.time_ns")
    _check_sum(costs.workspace_bytes, "the workspaces in bytes", f"{place}.workspace_bytes")


def _check_plan(plan: Plan, place: str = "$.data", num_ops: int | None = None, num_storages: int | None = None) -> None:
    if not 0 <= plan.boundary <= len(plan.steps):
        raise FormatError(f"{place}.boundary", f"expected 0 to {len(plan.steps)}, got {plan.boundary}")
    for i, op_id in enumerate(plan.steps):
        if op_id < 0 or (num_ops is not None and op_id >= num_ops):
            top = "" if num_ops is None else f" and below {num_ops}"
            raise FormatError(f"{place}.steps[{i}]", f"expected at least 0{top}, got {op_id}")
    for i, one in enumerate(plan.transfers):
        if one.storage < 0 or (num_storages is not None and one.storage >= num_storages):
            top = "" if num_storages is None else f" and below {num_storages}"
            raise FormatError(f"{place}.transfers[{i}].storage", f"expected at least 0{top}, got {one.storage}")
        # An instance is made in a step before the transfer and read in a step after it.
        if not 0 < one.out_after < one.back_before < len(plan.steps):
            found = f"out_after={one.out_after} and back_before={one.back_before}"
            raise FormatError(
                f"{place}.transfers[{i}]", f"expected 0 < out_after < back_before < {len(plan.steps)}, got {found}"
            )


def _check_data_flow(plan: Plan, graph: TrainingGraph, place: str) -> None:
    """Refuse a plan that reads a storage before it is made: it cannot be simulated."""
    producers, ran = graph.producers(), [False] * len(graph.ops)
    for i, op_id in enumerate(plan.steps):
        for read in graph.ops[op_id].reads:
            producer = producers[read]
            # Storages without a producer exist before the step or arrive with the backward.
            if producer is not None and not ran[producer]:
                missing = f"{graph.ops[op_id].name} reads {graph.storages[read].name}"
                raise FormatError(f"{place}.steps[{i}]", f"{missing} before {graph.ops[producer].name} made it")
        # Marked only now: an operator cannot read its own result.
        ran[op_id] = True


def _check_problem(problem: RematProblem) -> None:
    _check_graph(problem.graph, "$.data.graph")
    _check_costs(problem.costs, "$.data.costs")
    num_ops = len(problem.graph.ops)
    if len(problem.costs.time_ns) != num_ops:
        raise FormatError(
            "$.data.costs.time_ns", f"expected {num_ops} (one for each op), got {len(problem.costs.time_ns)}"
        )
    _check_limit(problem.budget_bytes, "$.data.budget_bytes")
    _check_limit(problem.offload_bytes, "$.data.offload_bytes")
    if problem.max_added_ns is not None:
        _check_limit(problem.max_added_ns, "$.data.max_added_ns")
    # Reports simulate the reference as it is, so its ids and its data flow must be sound.
    if problem.reference is not None:
        _check_plan(problem.reference, "$.data.reference", num_ops, len(problem.graph.storages))
        _check_data_flow(problem.reference, problem.graph, "$.data.reference")


def _check_result(result: PlanResult) -> None:
    if result.plan is not None:
        _check_plan(result.plan, "$.data.plan")
    for name in ("peak_bytes", "time_ns", "added_ns", "lower_bound_ns"):
        value = getattr(result, name)
        if value < 0:
            raise FormatError(f"$.data.{name}", f"expected at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class _Form:
    """One kind of document; `version` rises with every change of its dataclasses, except for new optional fields."""

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
