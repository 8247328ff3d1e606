"""JSON of the torch-free types: round trip, canonical bytes, and the place of each mistake."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_graphs import chain, cost_tables, joint_plan, problems, training_graphs
from remat_compiler.errors import FormatError
from remat_compiler.ir.fingerprint import fingerprint
from remat_compiler.ir.graph import StorageId, TrainingGraph
from remat_compiler.ir.json_form import dumps, loads
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus, Tier, Transfer
from remat_compiler.ir.problem import CopyTime, CostTable, Link, RematProblem

GRAPH = chain([8, 16, 32])
COSTS = CostTable((1,) * 6, (0,) * 6, ("roofline",) * 6)
PROBLEM = RematProblem(GRAPH, COSTS, 100, None, joint_plan(GRAPH))


@given(problems())
def test_a_problem_survives_the_round_trip(problem: RematProblem) -> None:
    text = dumps(problem)
    assert loads(RematProblem, text) == problem
    assert dumps(loads(RematProblem, text)) == text


@given(training_graphs())
def test_a_graph_survives_the_round_trip(graph: TrainingGraph) -> None:
    assert loads(TrainingGraph, dumps(graph)) == graph


@given(cost_tables(3))
def test_costs_survive_the_round_trip(costs: CostTable) -> None:
    assert loads(CostTable, dumps(costs).encode()) == costs


@given(training_graphs(), st.sampled_from(PlanStatus), st.integers(0, 2**63), st.text())
def test_plans_and_results_survive_the_round_trip(
    graph: TrainingGraph, status: PlanStatus, peak: int, words: str
) -> None:
    plan = joint_plan(graph)
    assert loads(Plan, dumps(plan)) == plan
    for made in (plan, None):
        result = PlanResult(status, "auto", made, peak, 7, 3, 1, ((words, "1"),))
        assert loads(PlanResult, dumps(result)) == result


def test_links_survive_the_round_trip_and_what_has_none_reads_as_before() -> None:
    assert "links" not in dumps(PROBLEM)
    assert "offload_bytes" not in dumps(PROBLEM)
    links = (Link(Tier.DISK, 1, 2), Link(Tier.HOST, 3, 4, 5, 6, (CopyTime(7, 8, 9), CopyTime(10, 8, 11)), 12))
    moving = replace(PROBLEM, offload_bytes=7, costs=replace(PROBLEM.costs, links=links))
    assert loads(RematProblem, dumps(moving)) == moving
    assert fingerprint(moving) != fingerprint(PROBLEM)


@pytest.mark.parametrize(
    ("links", "place"),
    [
        ((Link(Tier.DISK, 0, 1),), "$.data.links[0]: expected bandwidths of at least 1"),
        ((Link(Tier.HOST, 1, 1), Link(Tier.DISK, 1, 0)), "$.data.links[1]: expected bandwidths of at least 1"),
        ((Link(Tier.DISK, 1, 1, -1),), "$.data.links[0]: expected bandwidths of at least 1"),
        ((Link(Tier.DISK, 1, 1, 5, 0, (CopyTime(1, 4, 5),)),), "$.data.links[0].curve: expected ascending sizes"),
        ((Link(Tier.DISK, 1, 1, 0, 0, (CopyTime(1, 0, 5),)),), "$.data.links[0].curve: expected ascending sizes"),
        ((Link(Tier.DISK, 1, 1, 0, 0, (CopyTime(2, 3, 5), CopyTime(2, 4, 5))),), "$.data.links[0].curve: expected"),
        ((Link(Tier.DISK, 1, 1), Link(Tier.DISK, 2, 2)), "$.data.links[1].tier: expected each tier once"),
    ],
)
def test_a_link_that_cannot_be_is_named(links: tuple[Link, ...], place: str) -> None:
    with pytest.raises(FormatError, match=re.escape(place)):
        loads(CostTable, dumps(replace(PROBLEM.costs, links=links)))


def test_transfers_survive_the_round_trip_and_a_plan_without_any_reads_as_before() -> None:
    plan = joint_plan(GRAPH)
    assert "transfers" not in dumps(plan)
    moved = replace(plan, transfers=(Transfer(StorageId(2), 1, 4, Tier.DISK),))
    assert loads(Plan, dumps(moved)) == moved
    asked = replace(PROBLEM, reference=moved)
    assert loads(RematProblem, dumps(asked)) == asked


@pytest.mark.parametrize(
    ("transfer", "place"),
    [
        (Transfer(StorageId(-1), 1, 4), "$.data.transfers[0].storage: expected at least 0, got -1"),
        (Transfer(StorageId(2), 0, 4), "$.data.transfers[0]: expected 0 < out_after < back_before < 6"),
        (Transfer(StorageId(2), 4, 4), "$.data.transfers[0]: expected 0 < out_after < back_before < 6"),
        (Transfer(StorageId(2), 1, 6), "$.data.transfers[0]: expected 0 < out_after < back_before < 6"),
    ],
)
def test_a_transfer_out_of_place_is_named(transfer: Transfer, place: str) -> None:
    with pytest.raises(FormatError, match=re.escape(place)):
        loads(Plan, dumps(replace(joint_plan(GRAPH), transfers=(transfer,))))


def test_a_transfer_of_a_storage_that_the_graph_has_not_is_named() -> None:
    moved = replace(joint_plan(GRAPH), transfers=(Transfer(StorageId(99), 1, 4),))
    with pytest.raises(FormatError, match=r"reference\.transfers\[0\]\.storage: expected at least 0 and below"):
        loads(RematProblem, dumps(replace(PROBLEM, reference=moved)))


def test_the_text_is_canonical() -> None:
    text = dumps(PROBLEM)
    document = json.loads(text)
    assert text == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert document["format"] == "remat/problem"
    assert document["version"] == 1


def changed(value: Any, *path: str | int, to: object) -> str:
    """The JSON of `value` with the item at `path` replaced; removed where `to` is `KeyError`."""
    document = json.loads(dumps(value))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if to is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("format",), "remat/plan", "$.format: expected 'remat/problem', got 'remat/plan'"),
        (("version",), 2, "$.version: expected 1, got 2"),
        (("version",), KeyError, "$: expected an object with exactly the keys"),
        (("data", "graph"), [], "$.data.graph: expected an object (TrainingGraph), got []"),
        (("data", "budget_bytes"), 1.5, "$.data.budget_bytes: expected int, got 1.5"),
        (("data", "budget_bytes"), True, "$.data.budget_bytes: expected int, got True"),
        (("data", "budget_bytes"), -1, "$.data.budget_bytes: expected at least 0, got -1"),
        (("data", "budget_bytes"), KeyError, "$.data: field 'budget_bytes' is missing"),
        (("data", "budgetbytes"), 1, "unknown field 'budgetbytes'; did you mean 'budget_bytes'?"),
        (("data", "graph", "ops", 1, "phase"), "forwards", "$.data.graph.ops[1].phase: unknown Phase 'forwards'"),
        (("data", "graph", "ops", 1, "phase"), 3, "$.data.graph.ops[1].phase: unknown Phase 3"),
        (("data", "graph", "ops", 1, "reads", 0), "s0", "$.data.graph.ops[1].reads[0]: expected int, got 's0'"),
        (("data", "graph", "ops", 1, "reads", 0), 99, "$.data.graph: invalid graph: op 1 op_1: names storages [99]"),
        (("data", "costs", "time_ns"), [1], "$.data.costs: time_ns, workspace_bytes and provenance differ in length"),
        (("data", "costs", "time_ns", 2), -4, "$.data.costs.time_ns[2]: expected at least 0, got -4"),
        (("data", "reference", "boundary"), 7, "$.data.reference.boundary: expected 0 to 6, got 7"),
        (("data", "reference", "steps", 0), 6, "$.data.reference.steps[0]: expected at least 0 and below 6, got 6"),
    ],
)
def test_a_mistake_is_named_with_its_place(path: tuple[str | int, ...], to: object, says: str) -> None:
    with pytest.raises(FormatError) as error:
        loads(RematProblem, changed(PROBLEM, *path, to=to))
    assert says in str(error.value)


def test_costs_of_another_graph_are_refused() -> None:
    short = CostTable((1,), (0,), ("roofline",))
    with pytest.raises(FormatError, match=r"expected 6 \(one for each op\), got 1"):
        loads(RematProblem, dumps(RematProblem(GRAPH, short, 100)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"data":1}', "[" * 100_000, b"\xff"])
def test_what_is_no_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(FormatError):
        loads(Plan, text)


@pytest.mark.parametrize("stats", [[["a"]], [["a", "b", "c"]], [3], "ab"])
def test_records_have_their_length(stats: object) -> None:
    result = PlanResult(PlanStatus.FEASIBLE, "auto", None)
    with pytest.raises(FormatError, match=r"\$\.data\.stats"):
        loads(PlanResult, changed(result, "data", "stats", to=stats))


def test_a_negative_result_is_refused() -> None:
    result = PlanResult(PlanStatus.FEASIBLE, "auto", None, added_ns=-1)
    with pytest.raises(FormatError, match=r"added_ns: expected at least 0, got -1"):
        loads(PlanResult, dumps(result))
