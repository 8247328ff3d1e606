"""A plan around an interlude is a plan of the graph, and leaves as much free as was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, problems
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageKind
from remat_compiler.ir.invariants import graph_defects
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.interlude import planned_around, with_interlude, without_interlude
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner

PLANNERS = ("auto", "chain_dp", "save_all")


def everything(problem: RematProblem) -> tuple[int, int]:
    """Peak and held bytes of saving everything."""
    plan = SaveAll().plan(problem).plan
    assert plan is not None
    timeline = simulate(problem.graph, problem.costs, plan)
    return timeline.peak_bytes, timeline.saved_bytes


@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from((0.0, 0.5, 1.0)), between_bytes=st.integers(0, 500))
@pytest.mark.parametrize("name", PLANNERS)
def test_any_planner_leaves_the_room_or_says_that_it_cannot(
    name: str, problem: RematProblem, fraction: float, between_bytes: int
) -> None:
    peak, _ = everything(problem)
    asked = replace(problem, budget_bytes=int(fraction * (peak + between_bytes)))
    result = planned_around(asked, between_bytes, make_planner(name, effort=200).plan)
    assert result.plan is not None
    unlimited = replace(problem, budget_bytes=1 << 60)
    assert verify(unlimited, result.plan, result.peak_bytes) == []
    timeline = simulate(problem.graph, problem.costs, result.plan)
    fits = max(timeline.peak_bytes, timeline.saved_bytes + between_bytes) <= asked.budget_bytes
    tagged = any(op.save_policy is SavePolicy.MUST_NOT_SAVE for op in problem.graph.ops)
    trains = any(op.phase is Phase.BACKWARD for op in problem.graph.ops)
    if result.status in (PlanStatus.OPTIMAL, PlanStatus.FEASIBLE) and trains and not tagged:
        assert fits


@pytest.mark.parametrize("instance", ["chain", "residual", "encoder_decoder"])
def test_less_is_held_for_the_sake_of_what_runs_between(instance: str) -> None:
    problem = LIBRARY[instance]
    peak, held = everything(problem)
    asked = replace(problem, budget_bytes=2 * peak)
    planner = make_planner("auto", effort=500)
    free = planned_around(asked, 0, planner.plan)
    tight = planned_around(asked, 2 * peak - held // 2, planner.plan)
    assert free.plan is not None
    assert tight.plan is not None
    assert free.added_ns == 0 < tight.added_ns
    assert simulate(problem.graph, problem.costs, tight.plan).saved_bytes <= held // 2


@settings(max_examples=60)
@given(problem=problems())
def test_the_problem_with_an_interlude_is_well_formed(problem: RematProblem) -> None:
    position = next((op.id for op in problem.graph.ops if op.phase is Phase.BACKWARD), OpId(len(problem.graph.ops)))
    around = with_interlude(problem, position, 5)
    assert set(graph_defects(around.graph)) == set(graph_defects(problem.graph)) == set()
    plan = SaveAll().plan(around).plan
    assert plan is not None
    tangents = {s.id for s in problem.graph.storages if s.kind is StorageKind.TANGENT}
    first = next((i for i, op in enumerate(plan.steps) if not tangents.isdisjoint(around.graph.ops[op].reads)), None)
    assert first is None or plan.steps.index(position) < first
    assert verify(replace(problem, budget_bytes=1 << 60), without_interlude(plan, position)) == []
