"""The backward of a plan in another order: the same values are read, nothing takes longer, the peak is not higher."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from builders import KB, LIBRARY, ProblemBuilder, random_problem, with_budget
from orders.reordered import order_backward
from remat_compiler.ir.graph import OpId, Phase, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.orders.order_backward import freedom_of
from remat_passes.orders.separator import arranged
from remat_passes.orders.tasks import tasks_of
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.profile import arrays_of
from rewrite.random_plans import random_plan

UNLIMITED = 1 << 60


def cases() -> list[tuple[RematProblem, Plan]]:
    """Plans with repetitions of every kind."""
    problems = [LIBRARY[name] for name in sorted(LIBRARY)]
    problems += [random_problem(Random(seed), forwards=12, backwards=12) for seed in range(30)]
    return [(p, random_plan(p.graph, Random(seed))) for p in problems for seed in range(4)]


def reads_of(graph: TrainingGraph, plan: Plan) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each execution (operator, how many before it), the executions whose results it reads."""
    count: dict[int, int] = {}
    made: dict[int, tuple[int, int]] = {}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i in plan.steps:
        here = (i, count.get(i, 0))
        count[i] = here[1] + 1
        found[here] = [made[s] for s in graph.ops[i].reads if s in made]
        for s in graph.ops[i].writes:
            if not (graph.storages[s].kept and s in made):
                made[s] = here
    return found


def test_a_reordered_plan_reads_the_same_instances_at_no_higher_peak() -> None:
    lower = 0
    for problem, plan in cases():
        new = order_backward(problem, plan)
        before, after = (simulate(problem.graph, problem.costs, p) for p in (plan, new))
        asked = with_budget(problem, UNLIMITED)
        assert verify(asked, new, after.peak_bytes) == verify(asked, plan, before.peak_bytes)
        assert new.boundary == plan.boundary
        assert new.steps[: plan.boundary] == plan.steps[: plan.boundary]
        assert reads_of(problem.graph, new) == reads_of(problem.graph, plan)
        assert after.added_ns == before.added_ns
        assert after.peak_bytes <= before.peak_bytes
        assert order_backward(problem, plan) == new
        ends = [t.live_bytes[plan.boundary :].max(initial=0) for t in (before, after)]
        lower += ends[1] < ends[0]
    assert lower > 20


def test_tasks_have_the_bytes_of_the_simulator() -> None:
    for problem, plan in cases():
        tasks = tasks_of(arrays_of(problem), freedom_of(problem.graph), np.array(plan.steps, np.int64), plan.boundary)
        expected = simulate(problem.graph, problem.costs, plan).live_bytes[plan.boundary :]
        found = arranged(tasks, np.arange(len(plan.steps) - plan.boundary)).alive
        assert found.tolist() == expected.tolist()


def test_operators_with_effects_keep_their_order() -> None:
    for problem, plan in cases():
        graph = problem.graph
        ran = list(dict.fromkeys(i for i in order_backward(problem, plan).steps if graph.ops[i].traits))
        assert ran == list(dict.fromkeys(i for i in plan.steps if graph.ops[i].traits))


def dense(layers: int = 4, *, traits: Sequence[Trait] = ()) -> RematProblem:
    """Layers of large weights on small values: the gradient of a weight is larger than all that it is made from.

    The first layer alone has large values, so the backward peaks at its end.
    """
    b = ProblemBuilder()
    values = [b.storage(KB, StorageKind.INPUT)]
    values.append(b.forward([values[-1]], 60 * KB))
    for _ in range(layers):
        values.append(b.forward([values[-1]], KB))
    grad = b.storage(KB, StorageKind.TANGENT)
    for i in range(layers, 0, -1):
        b.run(Phase.BACKWARD, [grad, values[i + 1]], [(20 * KB, StorageKind.GRADIENT)])
        grad = b.backward([grad], KB if i > 1 else 60 * KB)
    b.run(Phase.BACKWARD, [grad, values[1]], [(KB, StorageKind.GRADIENT)])
    for i, trait in enumerate(traits):
        made = b.op([grad], [], Phase.BACKWARD, traits=frozenset({trait}), no_recompute=f"effect {i}")
        assert made.writes == ()
        b.times.append(1)
        b.workspaces.append(0)
    return b.problem()


def test_gradients_of_large_weights_wait_until_large_values_are_gone() -> None:
    problem = dense()
    joint = SaveAll().plan(problem)
    assert joint.plan is not None
    new = order_backward(problem, joint.plan)
    # Three of the four gradients wait, for 2 kB each, and two values of 60 kB are there at once in any order.
    assert joint.peak_bytes == (60 + 60 + 4 * 20 + 1 + 1) * KB
    assert simulate(problem.graph, problem.costs, new).peak_bytes < (60 + 60 + 20 + 12) * KB
    assert order_backward(problem, new, target_bytes=UNLIMITED) == new


def test_auto_reorders_before_it_recomputes_and_not_where_all_fits() -> None:
    problem = dense()
    joint = SaveAll().plan(problem)
    assert joint.plan is not None
    assert Auto().plan(with_budget(problem, joint.peak_bytes)).plan == joint.plan
    lower = Auto().plan(with_budget(problem, 160 * KB))
    assert lower.status is PlanStatus.FEASIBLE
    assert lower.added_ns == 0


@pytest.mark.parametrize("trait", [Trait.MUTATING, Trait.EFFECTFUL])
def test_a_change_in_place_keeps_its_readers_on_their_sides(trait: Trait) -> None:
    b = ProblemBuilder()
    value = b.forward([b.storage(KB, StorageKind.INPUT)], 8 * KB)
    tangent = b.storage(KB, StorageKind.TANGENT)
    b.run(Phase.BACKWARD, [tangent, value], [(9 * KB, StorageKind.GRADIENT)])
    b.op([tangent, value], [], Phase.BACKWARD, traits=frozenset({trait}), no_recompute="it changes its input")
    b.times.append(1)
    b.workspaces.append(0)
    b.run(Phase.BACKWARD, [tangent], [(50 * KB, StorageKind.TEMPORARY)])
    problem = b.problem()
    plan = Plan(tuple(map(OpId, range(4))), 1)
    moved = order_backward(problem, plan).steps != plan.steps
    assert moved == (trait is not Trait.MUTATING)
    swapped = Plan(tuple(map(OpId, (0, 2, 1, 3))), 1)
    assert bool(verify(problem, swapped)) == (trait is Trait.MUTATING)


def test_a_plan_without_a_backward_stays() -> None:
    b = ProblemBuilder()
    b.run(Phase.FORWARD, [b.storage(KB, StorageKind.INPUT)], [(KB, StorageKind.OUTPUT)])
    plan = Plan((OpId(0),), 1)
    assert order_backward(b.problem(), plan) == plan
    assert order_backward(RematProblem(TrainingGraph((), ()), CostTable((), (), ()), 0), Plan((), 0)) == Plan((), 0)
