"""Merged programs bound the whole one from below, and refining them ends at its optimum."""

from __future__ import annotations

import importlib.util
from random import Random

import pytest

from exact.exhaustive import optimum_ns
from exact.test_program import tight
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.coarse import merge
from remat_passes.exact.lift import decode
from remat_passes.exact.program import Cuts, Program
from remat_passes.exact.refine import refine
from remat_passes.exact.solver import SolveStatus, solve
from remat_passes.exact.space import Reductions
from remat_passes.exact.stages import space_of

SOLVER = "highs" if importlib.util.find_spec("highspy") else "cbc"
REDUCTIONS, CUTS = Reductions(), Cuts()


@pytest.mark.parametrize("seed", range(80))
def test_windows_bound_from_below(seed: int) -> None:
    """Any windows: not above the optimum; and of nested windows, the finer ones give no less."""
    problem = tight(seed)
    expected = optimum_ns(problem, once_per_gap=True)
    space = space_of(problem, REDUCTIONS)
    rng = Random(seed)
    few = sorted({0, *rng.sample(range(len(space.stages)), rng.randint(0, min(2, len(space.stages))))})
    more = sorted({*few, *rng.sample(range(len(space.stages)), rng.randint(0, len(space.stages)))})
    bounds = []
    for starts in (few, more):
        solution = solve(Program(merge(space, starts), REDUCTIONS, CUTS).model, SolverOptions(SOLVER, None))
        bounds.append(solution.bound)
        assert (solution.status is SolveStatus.INFEASIBLE) <= (expected is None)
    assert bounds[0] <= bounds[1] + 1e-6
    assert expected is None or bounds[1] <= expected + 1e-6


@pytest.mark.parametrize("seed", range(80))
def test_refining_ends_at_the_optimum(seed: int) -> None:
    problem = tight(seed)
    expected = optimum_ns(problem, once_per_gap=True)
    found = refine(space_of(problem, REDUCTIONS), REDUCTIONS, CUTS, SolverOptions(SOLVER, None), None, None)
    assert found.infeasible == (expected is None)
    assert found.added_ns == expected
    if expected is None:
        return
    assert found.bound_ns == expected
    assert found.plan is not None
    timeline = simulate(problem.graph, problem.costs, found.plan)
    assert verify(problem, found.plan, timeline.peak_bytes) == []


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_windows_of_one_stage_are_the_program(seed: int) -> None:
    problem = tight(seed)
    space = space_of(problem, REDUCTIONS)
    program = Program(merge(space, range(len(space.stages))), REDUCTIONS, CUTS)
    solution = solve(program.model, SolverOptions(SOLVER, None))
    if not solution.found:
        return
    plan = decode(program, solution.values)
    assert simulate(problem.graph, problem.costs, plan).peak_bytes <= problem.budget_bytes
