"""The program finds what exhaustive search finds, whatever cuts and reductions are on."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import fields
from functools import cache
from random import Random

import pytest

from builders import random_problem, with_budget
from exact.exhaustive import optimum_ns
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.lift import decode, start_values
from remat_passes.exact.program import Cuts, Program
from remat_passes.exact.solver import SolveStatus, solve
from remat_passes.exact.space import Reductions
from remat_passes.exact.stages import space_of
from remat_passes.exact.subset_sums import largest_sum
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

POSITIONS = (-0.05, 0.0, 0.1, 0.25, 0.5, 0.8)
"""Budgets, from the smallest peak found (0) to that of saving everything (1)."""
SWITCHES = list(itertools.product((True, False), repeat=len(fields(Reductions)) + len(fields(Cuts))))
"""All combinations of reductions and cuts."""
GROUPS, QUICK = 32, 16
SOLVERS = ("cbc", "highs") if importlib.util.find_spec("highspy") else ("cbc",)


@cache
def tight(seed: int) -> RematProblem:
    """A random problem of up to 8 forward operators, with a budget that most often forces something."""
    rng = Random(seed)
    problem = random_problem(rng, rng.randint(3, 8), rng.randint(2, 6))
    low = Auto(reorders=False, time_limit=0).plan(with_budget(problem, 0)).peak_bytes
    full = SaveAll().plan(problem).peak_bytes
    return with_budget(problem, low + int((full - low) * rng.choice(POSITIONS)))


def program_of(problem: RematProblem, switches: tuple[bool, ...], passes: int = 1) -> Program:
    """The program of `problem` with some reductions and cuts."""
    count = len(fields(Reductions))
    reductions, cuts = Reductions(*switches[:count]), Cuts(*switches[count:])
    return Program(space_of(problem, reductions, passes), reductions, cuts)


def optimum(problem: RematProblem, program: Program, solver: str) -> int | None:
    """Least added time by the program, its plan checked; `None` where there is no plan."""
    solution = solve(program.model, SolverOptions(solver, time_limit_s=None))
    assert solution.stats == ()
    if solution.status is SolveStatus.INFEASIBLE:
        return None
    assert solution.status is SolveStatus.OPTIMAL
    plan = decode(program, solution.values)
    timeline = simulate(problem.graph, problem.costs, plan)
    assert verify(problem, plan, timeline.peak_bytes) == []
    assert timeline.added_ns == round(solution.objective or 0.0)
    return timeline.added_ns


@pytest.mark.parametrize(
    "group", [pytest.param(i, marks=[pytest.mark.slow] if i >= QUICK else []) for i in range(GROUPS)]
)
def test_equals_exhaustive_search(group: int) -> None:
    """384 problems; every combination of switches comes up at least once."""
    for seed in range(group, 384, GROUPS):
        problem = tight(seed)
        expected = optimum_ns(problem, once_per_gap=True)
        switches = SWITCHES[seed % len(SWITCHES)]
        found = optimum(problem, program_of(problem, switches), SOLVERS[seed // GROUPS % len(SOLVERS)])
        assert found == expected, (seed, switches)


@pytest.mark.parametrize("seed", range(40))
def test_more_passes_close_in_on_free_order(seed: int) -> None:
    """Operators may run in any order and number between two first executions: never dearer than once in order."""
    problem = tight(seed)
    costs = [
        optimum_ns(problem, once_per_gap=True),
        optimum(problem, program_of(problem, SWITCHES[0], passes=2), SOLVERS[-1]),
        optimum_ns(problem, once_per_gap=False),
    ]
    reached = [cost if cost is not None else 1 << 60 for cost in costs]
    assert reached == sorted(reached, reverse=True)


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_of_the_space_is_a_start(seed: int) -> None:
    """The optimal plan stands for values that satisfy every row, at the same cost."""
    problem = tight(seed)
    program = program_of(problem, SWITCHES[0])
    solution = solve(program.model, SolverOptions(SOLVERS[-1], time_limit_s=None))
    if not solution.found:
        return
    start = start_values(program, decode(program, solution.values))
    assert start
    # Solvers of PuLP's own add a variable to an objective without any.
    cost = sum(c * start[v.name] for v, c in program.model.objective.items() if v.name != "__dummy")
    assert cost == pytest.approx(solution.objective)


@pytest.mark.parametrize("seed", range(30))
def test_the_rows_are_the_simulator(seed: int) -> None:
    """Without a byte less: at the peak of the optimal plan it still fits, one byte below something changes."""
    problem = tight(seed)
    program = program_of(problem, SWITCHES[0])
    solution = solve(program.model, SolverOptions(SOLVERS[-1], time_limit_s=None))
    if not solution.found:
        return
    plan = decode(program, solution.values)
    peak = simulate(problem.graph, problem.costs, plan).peak_bytes
    exact = program_of(with_budget(problem, peak), SWITCHES[-1])
    assert start_values(exact, plan)
    below = program_of(with_budget(problem, peak - 1), SWITCHES[-1])
    assert not start_values(below, plan)


def test_largest_sum() -> None:
    rng = Random(4)
    for _ in range(200):
        sizes = [rng.randrange(40) for _ in range(rng.randrange(9))]
        limit = rng.randrange(150)
        sums = {sum(s for s, x in zip(sizes, picks) if x) for picks in itertools.product((0, 1), repeat=len(sizes))}
        assert largest_sum(sizes, limit) == max(s for s in sums if s <= limit)


def test_what_the_generator_draws() -> None:
    """The problems have what the program must get right."""
    drawn = [tight(seed) for seed in range(100)]
    ops = [op for problem in drawn for op in problem.graph.ops]
    assert {op.save_policy.value for op in ops} == {"free", "must_save", "must_not_save"}
    assert any(op.replay is not None and op.may_recompute for op in ops)
    assert any(op.no_recompute for op in ops)
    held = [
        problem
        for problem in drawn
        for op in problem.graph.ops
        if op.phase.value == "tangent_free"
        and any(
            problem.graph.storages[s].kind is StorageKind.OUTPUT or problem.graph.storages[s].kept for s in op.writes
        )
    ]
    assert held
