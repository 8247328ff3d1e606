"""Linked instants: no plan beats them, and they are at least as strong as each instant alone."""

from __future__ import annotations

from random import Random

import pytest

from builders import LIBRARY, random_problem, random_steps, untagged, with_budget
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.lower_bound import BoundEffort, lower_bound_ns
from remat_passes.bounds.network import network_of
from remat_passes.bounds.one_instant import integer_bound_ns, proven_ns
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.bounds.windows import in_a_row, windows_program
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.solver import SolveStatus, solve
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

EXACT = SolverOptions(time_limit_s=None)
ROUNDING_NS = 2


def chosen_instants(rng: Random, problem: RematProblem, graph: StepGraph, order: OrderClass) -> list[Instant]:
    """Two or three instants that run in this order in every plan of the class."""
    ops = [op.id for op in problem.graph.ops if graph.live[op.id] and op.phase is not Phase.TANGENT_FREE]
    # All forward operators run before all of the backward, whatever their ids.
    ops.sort(key=lambda i: (graph.phase[i] is Phase.BACKWARD, i))
    picked = sorted(rng.sample(range(len(ops)), min(3, len(ops))))
    return in_a_row([Instant.of(graph, ops[k], order) for k in picked])


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_do_not_beat_linked_instants(seed: int) -> None:
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 9), rng.randint(2, 9)))
    plan = random_steps(rng, problem, rng.randint(1, 6))
    timeline = simulate(problem.graph, problem.costs, plan)
    problem = with_budget(problem, timeline.peak_bytes)
    assert verify(problem, plan) == []
    graph = StepGraph.of(problem)
    order = rng.choice(list(OrderClass))
    instants = chosen_instants(rng, problem, graph, order)
    solution = solve(windows_program(graph, instants, problem.budget_bytes), EXACT)
    assert solution.status is SolveStatus.OPTIMAL
    assert proven_ns(solution) <= timeline.added_ns


@pytest.mark.parametrize("seed", range(12))
def test_linking_is_at_least_as_strong_as_each_instant(seed: int) -> None:
    rng = Random(seed)
    problem = random_problem(rng, rng.randint(4, 9), rng.randint(4, 9))
    problem = with_budget(problem, int(0.8 * SaveAll().plan(problem).peak_bytes))
    graph = StepGraph.of(problem)
    instants = chosen_instants(rng, problem, graph, OrderClass.JOINT)
    solution = solve(windows_program(graph, instants, problem.budget_bytes), EXACT)
    alone = [integer_bound_ns(network_of(graph, i), problem.budget_bytes - i.held_bytes, EXACT) for i in instants]
    if None in alone:
        assert solution.status is SolveStatus.INFEASIBLE
    elif solution.status is not SolveStatus.INFEASIBLE:
        assert proven_ns(solution) + ROUNDING_NS >= max(bound for bound in alone if bound is not None)


def test_linking_raises_the_bound_of_a_chain_near_its_floor() -> None:
    problem = LIBRARY["chain"]
    asked = with_budget(problem, Auto().smallest_peak(with_budget(problem, 0)).peak_bytes)
    alone = lower_bound_ns(asked, BoundEffort(closed=2))
    linked = lower_bound_ns(asked, BoundEffort(closed=2, linked=4))
    assert alone.bound_ns < linked.bound_ns <= Auto().plan(asked).added_ns
