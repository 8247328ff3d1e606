"""Operators that end storages: nothing reads a parameter once its gradient has left."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from builders import ProblemBuilder
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.invariants import graph_defects
from remat_compiler.ir.plan import FITTING, Plan, PlanResult, PlanStatus, Transfer
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.ends import TRIES, behind_readers, planned_before_ends, with_markers
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.registry import make_planner
from rewrite.random_plans import random_plan

LAYERS = 6


def layers(*, size: int = 1000, weight: int = 3000, shared: bool = False, leaves: bool = True) -> RematProblem:
    """A chain of layers, each with a parameter that its forward and its backward read; the gradients leave.

    If `shared`, the first and the last layer have one parameter, whose gradient is that of the first layer.
    """
    b = ProblemBuilder()
    weights = [b.storage(weight, StorageKind.PARAMETER) for _ in range(LAYERS)]
    if shared:
        weights[-1] = weights[0]
    values = [b.storage(size, StorageKind.INPUT)]
    for one in weights:
        values.append(b.forward([values[-1], one], size))
    flow = b.storage(size, StorageKind.TANGENT)
    for i in reversed(range(LAYERS)):
        kind = StorageKind.TEMPORARY if leaves else StorageKind.GRADIENT
        (made,) = b.run(Phase.BACKWARD, [values[i], flow], [(weight, kind)], time=20)
        (flow,) = b.run(Phase.BACKWARD, [weights[i], flow], [(size, StorageKind.TEMPORARY)], time=20)
        # Of the shared one, the last contribution has the sum.
        if leaves and not (shared and i == LAYERS - 1):
            b.run(Phase.BACKWARD, sorted([weights[i], made]), [(0, StorageKind.GRADIENT)], time=0)
            b.ops[-1] = replace(b.ops[-1], ends=(weights[i],), no_recompute="it hands a gradient over")
    return b.problem()


def test_a_read_behind_the_end_is_refused() -> None:
    problem = layers()
    plan = Plan.saving_all(problem.graph)
    assert not verify(problem, plan)
    ends = next(step for step, op in enumerate(plan.steps) if problem.graph.ops[op].ends)
    # The forward of the same layer once more, for nothing.
    again = replace(plan, steps=(*plan.steps[: ends + 1], plan.steps[LAYERS - 1], *plan.steps[ends + 1 :]))
    assert [one.rule for one in verify(problem, again)] == [Rule.ENDED]
    assert not verify(problem, behind_readers(problem.graph, again))


def test_ends_are_among_the_reads() -> None:
    graph = layers().graph
    ops = list(graph.ops)
    ops[0] = replace(ops[0], ends=ops[0].writes)
    assert ["ends storages" in one for one in graph_defects(replace(graph, ops=tuple(ops)))] == [True]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_any_plan_is_put_right(seed: int, shared: bool) -> None:
    problem = layers(shared=shared)
    plan = random_plan(problem.graph, Random(seed))
    moved = behind_readers(problem.graph, plan)
    assert not verify(problem, moved)
    # Nothing but the operators that end something has moved, and those no further than they must.
    kept = [[op for op in one.steps if not problem.graph.ops[op].ends] for one in (plan, moved)]
    assert kept[0] == kept[1]
    assert behind_readers(problem.graph, moved) == moved


def test_transfers_keep_to_their_steps() -> None:
    problem = layers()
    ops, plan = problem.graph.ops, Plan.saving_all(problem.graph)
    ends = next(step for step, op in enumerate(plan.steps) if ops[op].ends)
    again = (*plan.steps[: ends + 1], plan.steps[LAYERS - 1], *plan.steps[ends + 1 :])
    # The first layer's result, away while the layers behind it run.
    away = Transfer(ops[0].writes[0], 2, len(again) - 5)
    moved = behind_readers(problem.graph, Plan(again, plan.boundary, (away,)))
    before = [again[step] for step in range(away.out_after, away.back_before) if not ops[again[step]].ends]
    (one,) = moved.transfers
    assert [op for op in moved.steps[one.out_after : one.back_before] if not ops[op].ends] == before


def test_markers_take_no_memory_and_put_readers_first() -> None:
    problem = layers(shared=True)
    marked = with_markers(problem)
    assert not graph_defects(marked.graph)
    plan = Plan.saving_all(marked.graph)
    assert (
        simulate(marked.graph, marked.costs, plan).peak_bytes == simulate(problem.graph, problem.costs, plan).peak_bytes
    )
    for op, ending in zip(marked.graph.ops, problem.graph.ops):
        readers = [one.id for one in problem.graph.ops if set(one.reads) & set(ending.ends) and one.id != op.id]
        backward = {i for i in readers if problem.graph.ops[i].phase is Phase.BACKWARD}
        assert backward == {one.id for one in marked.graph.ops if set(one.writes) & set(op.reads)} & backward


def test_planners_may_read_behind_an_end() -> None:
    problem = layers()
    plan = Plan.saving_all(problem.graph)
    again = replace(plan, steps=(*plan.steps, 0))
    assert [one.rule for one in verify(problem, again)] == [Rule.ENDED]
    # So what a cache has of it is a plan, and put right as it was when it was made.
    assert not verify(with_markers(problem), again)


@pytest.mark.parametrize(
    "planner", ["auto", "greedy", "chain_dp", "ilp", "hierarchical", "dtr", "min_cut", "chen_sqrt"]
)
@pytest.mark.parametrize("shared", [False, True])
def test_planners_keep_the_budget_with_gradients_that_leave(planner: str, shared: bool) -> None:
    kept = layers(leaves=False, shared=shared)
    smallest = make_planner("auto").plan(replace(kept, budget_bytes=1)).peak_bytes
    made = make_planner(planner)
    for budget in (30_000, 14_000, 11_000, 8_000, 1):
        problem = replace(layers(shared=shared), budget_bytes=budget)
        result = planned_before_ends(problem, made.plan)
        if result.plan is None:
            continue
        claimed = replace(problem, budget_bytes=max(budget, result.peak_bytes))
        assert not verify(claimed, result.plan, result.peak_bytes)
        assert (result.peak_bytes <= budget) == (result.status in FITTING)
        if planner == "auto" and budget == 1:
            assert result.peak_bytes < smallest / 2


def test_a_plan_that_takes_more_once_it_is_put_right_is_asked_for_again() -> None:
    problem = layers()
    saving = Plan.saving_all(problem.graph)
    # The forward once more at the end, for nothing: all gradients must wait for it.
    plan = replace(saving, steps=(*saving.steps, *saving.steps[:LAYERS]))
    moved = behind_readers(problem.graph, plan)
    before, after = (simulate(problem.graph, problem.costs, one).peak_bytes for one in (plan, moved))
    assert before < after
    asked: list[int] = []

    def answer(question: RematProblem) -> PlanResult:
        asked.append(question.budget_bytes)
        return PlanResult(PlanStatus.FEASIBLE, "wasteful", plan, before)

    result = planned_before_ends(replace(problem, budget_bytes=before), answer)
    # Each time for as much less as the last answer was over.
    assert asked == [before - i * (after - before) for i in range(TRIES)]
    assert (result.status, result.peak_bytes) == (PlanStatus.INFEASIBLE, after)
    fitting = planned_before_ends(replace(problem, budget_bytes=after), answer)
    assert (fitting.status, fitting.peak_bytes) == (PlanStatus.FEASIBLE, after)
