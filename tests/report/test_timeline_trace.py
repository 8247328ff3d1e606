"""The trace of a plan: valid for Perfetto, to the byte what the simulator says, and complete."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import generators, problems, random_steps
from moving_problems import moving_problem
from planned import problem, report, result
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.build import build_report
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.timeline_trace import timeline_trace
from remat_compiler.simulate.timeline import simulate
from trace_format import check_format, events_of, ns, series_of, slices_on
from transfers_at_random import with_random_transfers


def reported(asked: RematProblem, plan: Plan) -> PlanReport:
    answer = PlanResult(PlanStatus.FEASIBLE, "any", plan)
    return build_report(asked, answer, graph_name="graph0", joint_nodes=1, inner="eager")


def planned_trace(asked: RematProblem | None = None) -> str:
    asked = asked or problem()
    plan = result(asked).plan
    assert plan is not None
    return timeline_trace(report(asked), asked, plan, "0/1")


@given(asked=problems(), rng=generators(), repeats=st.integers(0, 20))
def test_any_plan_is_a_valid_trace_of_what_the_simulator_says(asked: RematProblem, rng: Random, repeats: int) -> None:
    plan = random_steps(rng, asked, repeats)
    simulated, told = simulate(asked.graph, asked.costs, plan), reported(asked, plan)
    events = events_of(timeline_trace(told, asked, plan))
    check_format(events)
    assert series_of(events, "planned") == [*simulated.live_bytes.tolist(), 0]
    assert max(series_of(events, "planned")) == told.estimated_peak_bytes == told.peak_bytes
    # Every operator that runs again is there as often as it does, and an arrow leads to it from its first run.
    again = Counter(event["args"]["op"] for event in slices_on(events, "recomputed"))
    assert again == Counter(asked.graph.ops[op].name for op, n in Counter(plan.steps).items() for _ in range(n - 1))
    entered = [event["bind_id"] for event in events if event.get("flow_in")]
    left = [event["bind_id"] for event in events if event.get("flow_out")]
    assert len(entered) == again.total() == len(left)
    assert set(entered) == set(left)
    runs = [*slices_on(events, "forward"), *slices_on(events, "backward"), *slices_on(events, "recomputed")]
    assert sorted(event["args"]["step"] for event in runs) == list(range(len(plan.steps)))
    if simulated.time_ns:
        assert max(ns(event["ts"]) + ns(event["dur"]) for event in runs) == simulated.time_ns


@settings(max_examples=200)
@given(rng=generators(), share=st.floats(0.2, 1))
def test_copies_and_waits_are_there_and_in_their_part_of_the_step(rng: Random, share: float) -> None:
    asked = moving_problem(rng)
    plan = with_random_transfers(asked.graph, random_steps(rng, asked, 5), rng, share)
    simulated = simulate(asked.graph, asked.costs, plan)
    events = events_of(timeline_trace(reported(asked, plan), asked, plan))
    check_format(events)
    back = Counter(event["args"]["storage"] for event in slices_on(events, "copies back"))
    assert back == Counter(asked.graph.storages[one.storage].name for one in plan.transfers)
    assert len(slices_on(events, "copies out")) <= back.total()
    waits = slices_on(events, "waits")
    if simulated.time_ns > simulated.stall_ns:
        waited_ns = sum(ns(event["dur"]) for event in waits if event["name"] == "waits for a copy")
        assert waited_ns == simulated.stall_ns
    # What is of the forward ends before the backward begins: the two can be moved apart.
    over_ns = [
        ns(event["ts"]) + ns(event["dur"]) for event in events if event["ph"] == "X" and event["cat"] == "forward"
    ]
    begins_ns = [ns(event["ts"]) for event in slices_on(events, "step") if event["cat"] == "backward"]
    assert max(over_ns) <= min(begins_ns, default=max(over_ns))


def test_what_is_known_of_an_operator_stands_at_it() -> None:
    events = events_of(planned_trace())
    check_format(events)
    (again,) = slices_on(events, "recomputed")
    first = next(event for event in slices_on(events, "forward") if event["args"]["op"] == again["args"]["op"])
    assert again["args"]["first_run_at_step"] == first["args"]["step"] == 0
    assert again["bind_id"] == first["bind_id"]
    assert (first["flow_out"], again["flow_in"]) == (True, True)
    facts = again["args"]
    assert facts["decision"] == "recompute f0: not saved to stay within the budget"
    assert (facts["bytes"], facts["source"], facts["module"]) == (4096, "model.py:10", "layer.0")
    assert {event["args"].get("decision", "")[:4] for event in slices_on(events, "forward")} >= {"save", "reco"}


def test_budget_and_the_step_without_one_are_counters_beside_the_plans() -> None:
    asked = problem()
    assert asked.reference is not None
    events = events_of(planned_trace(asked))
    assert series_of(events, "budget") == [asked.budget_bytes, 0]
    assert max(series_of(events, "without a budget")) == report(asked).peak_before_bytes
    without = timeline_trace(replace(report(asked), budget_bytes=None, memory=None), asked, asked.reference)
    assert {series for event in events_of(without) if event["ph"] == "C" for series in event["args"]} == {"planned"}


def test_without_times_every_operator_is_as_long() -> None:
    events = events_of(planned_trace(problem(time_ns=0)))
    check_format(events)
    assert {event["dur"] for event in slices_on(events, "forward")} == {1.0}
    assert max(series_of(events, "planned")) == report().estimated_peak_bytes


def test_the_same_plan_gives_the_same_bytes_and_says_whose_it_is() -> None:
    assert planned_trace() == planned_trace()
    about = json.loads(planned_trace())["otherData"]
    assert (about["graph"], about["compile_id"]) == ("graph0", "0/1")
