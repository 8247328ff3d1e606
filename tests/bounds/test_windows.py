"""Linked instants: no plan beats them, they are at least as strong as each instant alone, and they forbid only what is
impossible."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from brute_force import cheapest_added_ns
from builders import LIBRARY, random_problem, random_steps, untagged, with_budget
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.bounds import solved
from remat_passes.bounds.instant import DONE, Instant, OrderClass
from remat_passes.bounds.linked import chain_of, proven_ns
from remat_passes.bounds.lower_bound import BoundEffort, lower_bound_ns
from remat_passes.bounds.matrix import Matrix
from remat_passes.bounds.network import network_of
from remat_passes.bounds.one_instant import integer_bound_ns
from remat_passes.bounds.pricing import Profile
from remat_passes.bounds.relaxed import relax
from remat_passes.bounds.rows import ONE, Rows
from remat_passes.bounds.simplex import Answer, has_highs
from remat_passes.bounds.solved import solve_relaxation, solve_whole
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.bounds.windows import Windows
from remat_passes.exact.backends import SolverOptions
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

EXACT = SolverOptions(solver="highs", time_limit_s=None)
ROUNDING_NS = 2


def instant_ops(problem: RematProblem, graph: StepGraph) -> list[int]:
    """Operators that can be instants, in the order in which the step runs them."""
    ops = [op.id for op in problem.graph.ops if graph.live[op.id] and op.phase is not Phase.TANGENT_FREE]
    # All forward operators run before all of the backward, whatever their ids.
    return sorted(ops, key=lambda i: (graph.phase[i] is Phase.BACKWARD, i))


def chosen_instants(rng: Random, problem: RematProblem, graph: StepGraph, order: OrderClass) -> list[Instant]:
    """Some instants that run in this order in every plan of the class."""
    ops = instant_ops(problem, graph)
    rng.shuffle(ops)
    return chain_of(graph, order, ops, rng.randint(2, 5))


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_do_not_beat_linked_instants(seed: int) -> None:
    """Nor does a plan's own peak as the budget leave it without a solution."""
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 9), rng.randint(2, 9)))
    plan = random_steps(rng, problem, rng.randint(1, 6))
    timeline = simulate(problem.graph, problem.costs, plan)
    problem = with_budget(problem, timeline.peak_bytes)
    assert verify(problem, plan) == []
    graph = StepGraph.of(problem)
    instants = chosen_instants(rng, problem, graph, rng.choice(list(OrderClass)))
    program = Windows(graph, instants, problem.budget_bytes)
    for found in (solve_relaxation(program.rows), solve_whole(program.rows, 1_000, 0.0)):
        assert not found.infeasible
        assert proven_ns(found.bound) <= timeline.added_ns


@pytest.mark.parametrize("seed", range(24))
def test_linked_instants_do_not_pass_the_cheapest_plan(seed: int) -> None:
    """Every instant of the step linked, against a search over all plans of two repetitions."""
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 5), rng.randint(2, 4)))
    graph, peak = StepGraph.of(problem), SaveAll().plan(problem).peak_bytes
    instants = [Instant.of(graph, op, OrderClass.JOINT) for op in instant_ops(problem, graph)]
    for fraction in (0.6, 0.75, 0.9):
        asked = with_budget(problem, int(fraction * peak))
        cheapest = cheapest_added_ns(asked, most_repeats=2)
        found = solve_whole(Windows(graph, instants, asked.budget_bytes).rows, 1_000, 0.0)
        if cheapest is not None:
            assert not found.infeasible
            assert proven_ns(found.bound) <= cheapest


@pytest.mark.parametrize("order", OrderClass)
@pytest.mark.parametrize("seed", range(16))
def test_linking_is_at_least_as_strong_as_each_instant(seed: int, order: OrderClass) -> None:
    """Relaxations compared with relaxations, and whole numbers with whole numbers, in every class."""
    rng = Random(seed)
    problem = random_problem(rng, rng.randint(4, 9), rng.randint(4, 9))
    problem = with_budget(problem, int(rng.choice((0.6, 0.8)) * SaveAll().plan(problem).peak_bytes))
    graph = StepGraph.of(problem)
    instants = chosen_instants(rng, problem, graph, order)
    program = Windows(graph, instants, problem.budget_bytes)
    linear, whole = solve_relaxation(program.rows), solve_whole(program.rows, 1_000, 0.0)
    for instant in instants:
        network, room = network_of(graph, instant), problem.budget_bytes - instant.held_bytes
        priced, closed = relax(network, room), integer_bound_ns(network, room, EXACT)
        assert linear.infeasible or (priced.feasible and proven_ns(linear.bound) + ROUNDING_NS >= priced.bound_ns)
        # Without HiGHS nothing is proven of whole numbers.
        is_known = has_highs() and not whole.infeasible
        assert not is_known or (closed is not None and proven_ns(whole.bound) + ROUNDING_NS >= closed)


def test_a_chain_of_instants_is_in_the_order_of_all_plans() -> None:
    problem = random_problem(Random(5), 9, 9)
    graph = StepGraph.of(problem)
    for order in OrderClass:
        instants = chain_of(graph, order, reversed(instant_ops(problem, graph)), 6)
        assert len(instants) > 1
        for i, instant in enumerate(instants):
            assert all(instant.state[before.op] == DONE for before in instants[:i])
            assert all(instant.state[after.op] != DONE for after in instants[i:])


def test_instants_that_no_order_has_cannot_be_linked() -> None:
    problem = LIBRARY["chain"]
    graph = StepGraph.of(problem)
    ops = instant_ops(problem, graph)
    later, earlier = (Instant.of(graph, op, OrderClass.ANY) for op in (ops[-1], ops[0]))
    with pytest.raises(ValueError, match="does not surely run before"):
        Windows(graph, [later, earlier], problem.budget_bytes)


def test_equal_layers_are_counted_whole() -> None:
    """A budget between two and three of the equal values: the rounded rows raise the relaxation to whole values."""
    problem = LIBRARY["chain"]
    graph, peak = StepGraph.of(problem), SaveAll().plan(problem).peak_bytes
    size = max(graph.size_bytes)
    op = max(instant_ops(problem, graph), key=lambda i: -abs(2 * i - len(graph.live) - 1))
    instant = Instant.of(graph, op, OrderClass.JOINT)
    budgets = (peak - size // 2, peak - size)
    bounds = [proven_ns(solve_relaxation(Windows(graph, [instant], budget).rows).bound) for budget in budgets]
    priced = [relax(network_of(graph, instant), budget - instant.held_bytes).bound_ns for budget in budgets]
    assert priced[0] < priced[1]
    assert bounds[0] == bounds[1] == pytest.approx(priced[1], abs=ROUNDING_NS)


def test_linking_raises_the_bound_of_a_chain_near_its_floor() -> None:
    problem = LIBRARY["chain"]
    asked = with_budget(problem, Auto().smallest_peak(with_budget(problem, 0)).peak_bytes)
    alone = lower_bound_ns(asked, BoundEffort(closed=2, linked=0))
    linked = lower_bound_ns(asked, BoundEffort(closed=2))
    assert alone.bound_ns < linked.bound_ns <= Auto().plan(asked).added_ns
    assert "linked" in linked.how
    assert linked.work > alone.work
    assert linked == lower_bound_ns(asked, BoundEffort(closed=2))


def test_multipliers_prove_the_bound_whatever_the_solver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multipliers at random, as of a solver that is broken, never prove more than the optimum."""
    problem = random_problem(Random(11), 7, 7)
    problem = with_budget(problem, int(0.7 * SaveAll().plan(problem).peak_bytes))
    graph = StepGraph.of(problem)
    rows = Windows(graph, chosen_instants(Random(1), problem, graph, OrderClass.JOINT), problem.budget_bytes).rows
    best = solve_relaxation(rows)
    assert best.values is not None
    assert best.bound == pytest.approx(rows.offset + float(np.array(rows.cost) @ best.values))
    draw = np.random.default_rng(3)
    for _ in range(20):
        made = Answer(draw.exponential(2.0, len(rows.right)) - 0.5, best.values, False, 1)
        monkeypatch.setattr(solved, "by_highs", lambda *_, made=made: made)
        monkeypatch.setattr(solved, "by_cbc", lambda *_, made=made: made)
        assert solve_relaxation(rows).bound <= best.bound + 1e-6


def test_both_solvers_prove_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("highspy")
    for seed, fraction in ((2, 0.7), (3, 0.3), (4, 0.85)):
        problem = random_problem(Random(seed), 7, 7)
        problem = with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))
        graph = StepGraph.of(problem)
        instants = chosen_instants(Random(seed), problem, graph, OrderClass.JOINT)
        rows = Windows(graph, instants, problem.budget_bytes).rows
        by_highs = solve_relaxation(rows)
        with monkeypatch.context() as patch:
            patch.setattr(solved, "has_highs", lambda: False)
            by_cbc = solve_relaxation(rows)
            assert not np.isfinite(solve_whole(rows, 10, 0.0).bound) or rows.impossible or not rows.right
        assert by_cbc.infeasible == by_highs.infeasible
        assert by_cbc.bound == pytest.approx(by_highs.bound) or by_cbc.infeasible


def test_infeasible_relaxations_are_proven_by_either_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget just above what each instant holds in any case, below what it must hold besides."""
    problem = LIBRARY["chain"]
    graph = StepGraph.of(problem)
    instants = [Instant.of(graph, op, OrderClass.JOINT) for op in instant_ops(problem, graph)[::4]]
    rows = Windows(graph, instants, None).rows
    least = int(solve_relaxation(rows).bound * 1e6)
    pinned = replace(graph, repeats=[False] * len(graph.repeats))
    needs = int(solve_relaxation(Windows(pinned, instants, None).rows).bound * 1e6)
    assert needs > least
    for is_there in (has_highs(), False):
        monkeypatch.setattr(solved, "has_highs", lambda is_there=is_there: is_there)
        assert solve_relaxation(Windows(pinned, instants, needs - 2).rows).infeasible
        assert not solve_relaxation(Windows(pinned, instants, needs + 2).rows).infeasible


def test_a_program_that_takes_too_long_is_given_up() -> None:
    """By work, not by time: nothing is proven, and no work is done beyond."""
    problem = LIBRARY["residual"]
    asked = with_budget(problem, int(0.5 * SaveAll().plan(problem).peak_bytes))
    graph = StepGraph.of(asked)
    instants = chain_of(graph, OrderClass.JOINT, Profile(asked, graph).parts(8), 8)
    rows = Windows(graph, instants, asked.budget_bytes).rows
    enough, stopped = solve_relaxation(rows), solve_relaxation(rows, Matrix.of(rows).size // 2)
    assert proven_ns(enough.bound) > 0
    assert proven_ns(stopped.bound) == 0
    assert not stopped.infeasible
    assert stopped.values is None
    assert stopped.work < enough.work


def test_columns_in_no_row_are_free_for_either_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an operator without arguments, readers or time: a modelling library may leave them out."""
    rows = Rows()
    idle, used = rows.variable(), rows.variable(cost=2.0)
    rows.at_least([used], ONE)
    rows.variable()
    solutions = [solve_relaxation(rows)]
    # As where the extra `highs` is not installed.
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert not solved.has_highs()
    solutions.append(solve_relaxation(rows))
    for one in solutions:
        assert one.bound == pytest.approx(2.0)
        assert one.values is not None
        assert len(one.values) == 3
        assert 0 <= one.values[idle.terms[0][0]] <= 1
