"""Both solvers give the same, checked answers, and one replaces the other."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from random import Random

import pulp
import pytest

from remat_passes.exact import solver as solver_module
from remat_passes.exact.backends import Answer, BrokenSolver, SolverOptions, read_cbc_log
from remat_passes.exact.solver import SolveStatus, solve


@pytest.fixture(params=["cbc", "highs"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "highs":
        pytest.importorskip("highspy")
    return str(request.param)


def cover(rng: Random, size: int, rows: int) -> tuple[pulp.LpProblem, list[int], list[list[int]]]:
    """Choose cheapest items that cover each row to a third."""
    model = pulp.LpProblem("cover", pulp.LpMinimize)
    chosen = [pulp.LpVariable(f"x{i}", cat=pulp.LpBinary) for i in range(size)]
    costs = [rng.randint(1, 50) for _ in chosen]
    weights = [[rng.randint(0, 20) for _ in chosen] for _ in range(rows)]
    model += pulp.LpAffineExpression(list(zip(chosen, costs)), 7)
    for row in weights:
        model += pulp.LpAffineExpression(list(zip(chosen, row))) >= sum(row) // 3
    return model, costs, weights


@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_brute_force(name: str, seed: int) -> None:
    model, costs, weights = cover(Random(seed), 9, 4)
    best = min(
        7 + sum(c for c, x in zip(costs, picks) if x)
        for picks in itertools.product((0, 1), repeat=9)
        if all(sum(w for w, x in zip(row, picks) if x) >= sum(row) // 3 for row in weights)
    )
    found = solve(model, SolverOptions(name))
    assert (found.status, found.solver, found.stats) == (SolveStatus.OPTIMAL, name, ())
    assert found.objective == pytest.approx(best)
    assert found.bound == pytest.approx(best)
    assert set(found.values.values()) <= {0.0, 1.0}


def test_limits_keep_bound_below_optimum(name: str) -> None:
    model, _, _ = cover(Random(5), 60, 12)
    optimum = solve(model, SolverOptions(name, time_limit_s=None)).objective
    assert optimum is not None
    limited = solve(model, SolverOptions(name, time_limit_s=None, node_limit=1))
    assert limited.status in {SolveStatus.FEASIBLE, SolveStatus.TIMED_OUT, SolveStatus.OPTIMAL}
    assert limited.bound <= optimum + 1e-6
    loose = solve(model, SolverOptions(name, time_limit_s=None, gap=0.3))
    assert loose.objective is not None
    assert loose.bound <= optimum <= loose.objective
    assert loose.objective - loose.bound <= 0.3 * loose.objective


def test_warm_start_is_taken(name: str) -> None:
    model, _, _ = cover(Random(6), 12, 3)
    best = solve(model, SolverOptions(name))
    again = solve(model, SolverOptions(name, warm_start=best.values))
    assert again.objective == best.objective


@pytest.mark.parametrize("integer", [True, False])
def test_infeasible_is_proven(name: str, integer: bool) -> None:
    model = pulp.LpProblem("none", pulp.LpMinimize)
    x = pulp.LpVariable("x", 0, 3, cat=pulp.LpInteger if integer else pulp.LpContinuous)
    y = pulp.LpVariable("y", 0, 3, cat=pulp.LpInteger if integer else pulp.LpContinuous)
    model += x + y
    model += x + y >= 5
    model += x - y >= 2
    model += x + 2 * y >= 8
    found = solve(model, SolverOptions(name))
    assert (found.status, found.bound, found.solver) == (SolveStatus.INFEASIBLE, math.inf, name)


def test_integers_may_make_it_infeasible(name: str) -> None:
    model = pulp.LpProblem("parity", pulp.LpMinimize)
    x, y = (pulp.LpVariable(n, 0, 9, cat=pulp.LpInteger) for n in "xy")
    model += x
    model += 2 * x + 2 * y == 7
    assert solve(model, SolverOptions(name)).status is SolveStatus.INFEASIBLE


def test_linear_programs_and_empty_rows(name: str) -> None:
    model = pulp.LpProblem("linear", pulp.LpMinimize)
    x, y = pulp.LpVariable("x", 0), pulp.LpVariable("y", 0)
    model += 2 * x + 3 * y
    model += x + y >= 4
    model += x - y <= 1
    found = solve(model, SolverOptions(name))
    assert found.status is SolveStatus.OPTIMAL
    assert found.objective == pytest.approx(9.5)


def test_nothing_to_decide(name: str) -> None:
    model = pulp.LpProblem("nothing", pulp.LpMinimize)
    model += 3
    found = solve(model, SolverOptions(name))
    assert (found.status, found.objective, found.bound) == (SolveStatus.OPTIMAL, 3.0, 3.0)


def test_no_time_is_legal() -> None:
    model, _, _ = cover(Random(1), 5, 2)
    assert solve(model, SolverOptions(time_limit_s=0)).status is SolveStatus.TIMED_OUT


def test_asked_for_what_there_is_not() -> None:
    model, _, _ = cover(Random(1), 5, 2)
    with pytest.raises(ValueError, match="known are cbc, highs"):
        solve(model, SolverOptions("gurobi"))
    with pytest.raises(ValueError, match="maximises"):
        solve(pulp.LpProblem("up", pulp.LpMaximize))


NONSENSE = {
    "not whole": Answer(optimal=True, values={"x": 0.5, "y": 1.0}, bound=2.5),
    "outside": Answer(optimal=True, values={"x": -1.0, "y": 1.0}, bound=1.0),
    "violates": Answer(optimal=True, values={"x": 0.0, "y": 0.0}, bound=0.0),
    "missing": Answer(optimal=True, values={"x": 1.0}, bound=0.0),
    "no number": Answer(optimal=True, values={"x": math.nan, "y": 1.0}, bound=0.0),
    "bound above": Answer(optimal=True, values={"x": 1.0, "y": 1.0}, bound=5.0),
    "bound no number": Answer(optimal=True, values={"x": 1.0, "y": 1.0}, bound=math.nan),
}


def small() -> pulp.LpProblem:
    """Minimise x + 2 y over binaries with x + y >= 1."""
    model = pulp.LpProblem("small", pulp.LpMinimize)
    x, y = (pulp.LpVariable(n, cat=pulp.LpBinary) for n in "xy")
    model += x + 2 * y
    model += x + y >= 1
    return model


@pytest.mark.parametrize("kind", sorted(NONSENSE))
def test_nonsense_falls_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = solver_module.SOLVERS["cbc"]
    monkeypatch.setattr(solver_module, "SOLVERS", {"broken": lambda model, options: NONSENSE[kind], "cbc": real})
    found = solve(small(), SolverOptions("broken"))
    assert (found.status, found.solver, found.objective) == (SolveStatus.OPTIMAL, "cbc", 1.0)
    assert dict(found.stats)["fallbacks"] == "1"
    assert dict(found.stats)["reason"].startswith("broken: ")


def test_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: pulp.LpProblem, options: SolverOptions) -> Answer:
        raise BrokenSolver("gone")

    monkeypatch.setattr(solver_module, "SOLVERS", {"one": broken, "two": broken})
    found = solve(small(), SolverOptions("one"))
    assert (found.status, found.objective, found.found) == (SolveStatus.FAILED, None, False)
    assert found.stats == (("fallbacks", "2"), ("reason", "one: gone; two: gone"))


def test_missing_and_crashing_cbc(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for path in ("/nowhere/cbc", "/bin/false", "/bin/true"):
        monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", path)
        with pytest.raises(BrokenSolver):
            solver_module.SOLVERS["cbc"](small(), SolverOptions())


def test_log_without_result_is_refused() -> None:
    with pytest.raises(BrokenSolver, match="has no result"):
        read_cbc_log("Welcome to the CBC MILP Solver\n", {})


def test_seconds_of_highs_are_counted_and_end_at_the_same_point() -> None:
    """Whatever else the machine does: a limit of seconds is one of work."""
    pytest.importorskip("highspy")
    model, _, _ = cover(Random(5), 60, 12)
    whole = solve(model, SolverOptions("highs", time_limit_s=None))
    first, second = (solve(model, SolverOptions("highs", time_limit_s=0.05)) for _ in range(2))
    assert whole.status is SolveStatus.OPTIMAL
    assert 0 < first.iterations < whole.iterations
    assert first.bound <= whole.bound
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert 0.0 < first.charged_s == first.counted_s


def test_seconds_of_cbc_are_counted_by_its_work() -> None:
    """A larger program counts for more, and the same one for the same in every run, whatever the clock says."""
    small_one, large, again = (solve(cover(Random(5), *size)[0]) for size in ((12, 6), (60, 12), (60, 12)))
    assert 0.0 < small_one.counted_s < large.counted_s == again.counted_s


IN_A_NEW_PROCESS = """
import numpy as np
import pulp
from remat_passes.bounds.matrix import Matrix
from remat_passes.bounds.simplex import by_cbc, by_highs
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.solver import solve

x = pulp.LpVariable("x", cat=pulp.LpBinary)
model = pulp.LpProblem("small", pulp.LpMinimize)
model += x
model += 2 * x >= 1
one = np.ones(1)
rows = Matrix(one, one, one, np.zeros(1, np.int64), np.zeros(1, np.int64), one)
assert by_{first}(rows, 9).values == [1.0]
assert solve(model, SolverOptions({name!r})).objective == 1.0
"""


@pytest.mark.parametrize("first", ["cbc", "highs"])
def test_nothing_is_written_to_standard_output(name: str, first: str) -> None:
    """Not even once a process, as HiGHS 1.16 does by itself: it is the output of the user's program."""
    if first == "highs":
        pytest.importorskip("highspy")
    program = IN_A_NEW_PROCESS.format(first=first, name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
