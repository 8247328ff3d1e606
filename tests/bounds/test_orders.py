"""Splitting the plans by the order of two operators: never above the cheapest plan in any order, and often higher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from builders import KB, ProblemBuilder, random_problem, with_budget
from exact.exhaustive import Exhaustive
from remat_compiler.ir.graph import OpId, Phase, StorageKind
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.lower_bound import BoundEffort, lower_bound_ns
from remat_passes.bounds.orders import split_orders
from remat_passes.bounds.pricing import Pricing, Work
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.planning.save_all import SaveAll

WHOLE = BoundEffort(instants=1_000, splits=0)
SPLIT = BoundEffort(instants=1_000, splits=8, pairs=6)


def backward_orders(problem: RematProblem) -> Iterator[list[int]]:
    """Every order that leaves the forward as it is, and that of effects, and runs the backward behind what it reads."""
    producers = problem.graph.producers()
    fixed = [op.id for op in problem.graph.ops if op.phase is not Phase.BACKWARD]
    left = [op for op in problem.graph.ops if op.phase is Phase.BACKWARD]

    def extend(order: list[int]) -> Iterator[list[int]]:
        ready = [op for op in left if op.id not in order]
        if not ready:
            yield order
        for op in ready:
            effects_before = any(other.traits and other.id < op.id for other in ready) and bool(op.traits)
            if not effects_before and all(producers[s] is None or producers[s] in order for s in op.reads):
                yield from extend([*order, op.id])

    yield from extend([*fixed])


def in_order(problem: RematProblem, order: list[int]) -> RematProblem:
    """`problem` with its operators in another order."""
    ops = tuple(replace(problem.graph.ops[old], id=OpId(new)) for new, old in enumerate(order))
    costs = problem.costs
    table = CostTable(
        tuple(costs.time_ns[i] for i in order), tuple(costs.workspace_bytes[i] for i in order), ("test",) * len(order)
    )
    return replace(problem, graph=replace(problem.graph, ops=ops), costs=table)


def small_problem(rng: Random) -> RematProblem | None:
    """A random problem with a few orders of its backward; `None` where there are many."""
    problem = random_problem(rng, rng.randint(2, 4), rng.randint(2, 4))
    return problem if sum(1 for _ in zip(range(13), backward_orders(problem))) <= 12 else None


@pytest.mark.parametrize("group", range(8))
def test_no_order_has_a_cheaper_plan(group: int) -> None:
    """Against the cheapest of all plans in every order of the backward, found by exhaustive search."""
    compared = 0
    for seed in range(group, 640, 8):
        rng = Random(seed)
        problem = small_problem(rng)
        if problem is None:
            continue
        asked = with_budget(problem, int(rng.choice((0.6, 0.75, 0.9)) * SaveAll().plan(problem).peak_bytes))
        bound = lower_bound_ns(asked, SPLIT, OrderClass.ANY_BACKWARD)
        costs = [Exhaustive(in_order(asked, o), once_per_gap=False).added_ns() for o in backward_orders(asked)]
        found = [cost for cost in costs if cost is not None]
        assert not bound.infeasible or not found, seed
        assert bound.bound_ns <= min(found, default=bound.bound_ns), seed
        assert lower_bound_ns(asked, WHOLE, OrderClass.ANY_BACKWARD).bound_ns <= bound.bound_ns or bound.infeasible
        compared += bool(found)
    assert compared >= 2


def branches() -> RematProblem:
    """A residual block with a projection: the gradients of both branches are large, and either may be put off."""
    b = ProblemBuilder()
    value = b.storage(8 * KB, StorageKind.INPUT)
    for _ in range(6):
        value = b.forward([value], 8 * KB)
    left, right = b.forward([value], 4 * KB), b.forward([value], 4 * KB)
    b.forward([left, right], 8 * KB)
    grad = b.storage(8 * KB, StorageKind.TANGENT)
    made = [(4 * KB, StorageKind.TEMPORARY), (20 * KB, StorageKind.GRADIENT)]
    parts = [b.run(Phase.BACKWARD, [grad, saved], made, workspace=40 * KB)[0] for saved in (left, right)]
    grad = b.backward(parts, 8 * KB, KB)
    for saved in reversed(range(1, 7)):
        grad = b.backward([grad, b.ops[saved - 1].writes[0]], 8 * KB, KB)
    return b.problem()


@pytest.mark.parametrize("fraction", [0.775, 0.8, 0.85, 0.9, 0.95])
def test_a_put_off_gradient_has_an_instant_of_its_own(fraction: float) -> None:
    problem = branches()
    asked = with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))
    whole = lower_bound_ns(asked, WHOLE)
    split = lower_bound_ns(asked, SPLIT)
    ordered = lower_bound_ns(asked, SPLIT, OrderClass.JOINT)
    cheapest = min(
        cost
        for order in backward_orders(asked)
        if (cost := Exhaustive(in_order(asked, order), once_per_gap=True).added_ns()) is not None
    )
    assert whole.bound_ns < split.bound_ns <= min(ordered.bound_ns, cheapest)


def test_parts_have_the_order_that_they_are_named_for() -> None:
    problem = branches()
    graph = StepGraph.of(problem)
    backward = [op.id for op in problem.graph.ops if op.phase is Phase.BACKWARD]
    later = graph.ordered(backward[1], backward[0])
    assert later.sequence.index(backward[1]) < later.sequence.index(backward[0])
    assert sorted(later.sequence) == list(range(len(problem.graph.ops)))
    whole = Pricing(graph, int(0.8 * SaveAll().plan(problem).peak_bytes), OrderClass.ANY, Work())
    whole.price(backward)
    parts = split_orders(whole, splits=8, pairs=6)
    assert len(parts) > 1
    assert not any(part.whole for part in parts)
