"""What the exact planner says of its plans is true, and every way it may end is a way to go on."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pulp
import pytest

from builders import KB, LIBRARY, gathered, random_problem, with_budget
from exact.exhaustive import optimum_ns
from remat_compiler.ir.graph import Trait
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.simplex import has_highs
from remat_passes.exact import solver as solver_module
from remat_passes.exact.backends import Answer, BrokenSolver, SolverOptions
from remat_passes.planning.auto import Auto
from remat_passes.planning.ilp import Ilp
from remat_passes.planning.save_all import SaveAll


@pytest.mark.parametrize("seed", range(60))
def test_claims_hold(seed: int) -> None:
    """OPTIMAL is the optimum, a bound is below it, INFEASIBLE has no plan where it says so."""
    rng = Random(1000 + seed)
    problem = random_problem(rng, rng.randint(2, 7), rng.randint(2, 5))
    full = SaveAll().plan(problem).peak_bytes
    problem = with_budget(problem, int(full * rng.uniform(0.5, 1.0)))
    expected = optimum_ns(problem, once_per_gap=True)
    free = optimum_ns(problem, once_per_gap=False)
    states = 0 if seed % 5 else 1_000
    found = Ilp(reorders=False, cuts=seed % 2 == 0, reductions=seed % 3 != 0, states=states).plan(problem)
    if found.status is PlanStatus.INFEASIBLE:
        assert expected is None
        # CBC says of some programs that it found nothing, where HiGHS proves that there is nothing.
        assert "proven" in dict(found.stats)["proof"] or not has_highs()
        return
    assert free is not None
    assert found.status is PlanStatus.OPTIMAL
    # Auto and the search may run an operator twice in a gap, which is outside the space.
    assert free <= found.added_ns
    assert expected is None or found.added_ns <= expected
    assert found.added_ns == free or dict(found.stats)["proof"] != "demands"
    assert found.lower_bound_ns == found.added_ns


@pytest.mark.parametrize("seed", range(20))
def test_its_plan_is_never_worse_than_the_default_planners(seed: int) -> None:
    """Neither where it refuses to try, nor where an order of its own is cheaper than the optimum of the kept one."""
    rng = Random(3000 + seed)
    problem = random_problem(rng, rng.randint(4, 9), rng.randint(4, 7))
    problem = with_budget(problem, int(SaveAll().plan(problem).peak_bytes * rng.uniform(0.4, 0.9)))
    default = Auto().plan(problem)
    for planner in (Ilp(), Ilp(max_executions=0)):
        found = planner.plan(problem)
        fits = found.status is not PlanStatus.INFEASIBLE
        assert fits or default.status is PlanStatus.INFEASIBLE
        if fits:
            assert found.plan is not None
            assert verify(problem, found.plan, found.peak_bytes) == []
            assert found.lower_bound_ns <= found.added_ns
            assert default.status is PlanStatus.INFEASIBLE or found.added_ns <= default.added_ns
        else:
            assert found.peak_bytes <= default.peak_bytes


def test_gathers_are_among_what_may_be_repeated() -> None:
    """A weight that is kept takes more than all that can be recomputed otherwise."""
    problem = gathered(layers=3)
    held = tuple(
        replace(op, no_recompute="ranks must agree") if Trait.GATHER in op.traits else op for op in problem.graph.ops
    )
    smallest = (
        Ilp(reorders=False).plan(with_budget(replace(problem, graph=replace(problem.graph, ops=held)), 0)).peak_bytes
    )
    asked = with_budget(problem, smallest - 8 * KB)
    found = Ilp(reorders=False).plan(asked)
    assert found.status is PlanStatus.OPTIMAL
    assert found.plan is not None
    assert verify(asked, found.plan, found.peak_bytes) == []
    assert any(Trait.GATHER in op.traits and found.plan.steps.count(op.id) > 1 for op in problem.graph.ops), (
        "it fits without"
    )
    assert found.added_ns == optimum_ns(asked, once_per_gap=True)


@pytest.mark.parametrize("options", [{"time_limit": 0.0}, {"max_executions": 0}])
def test_limits_give_the_plan_to_begin_with(options: dict[str, float]) -> None:
    problem = LIBRARY["chain"]
    problem = with_budget(problem, int(0.6 * SaveAll().plan(problem).peak_bytes))
    found = Ilp(**options).plan(problem)  # type: ignore[arg-type]
    auto = Auto(reorders=False).plan(problem)
    assert (found.status, found.plan, found.lower_bound_ns) == (PlanStatus.FEASIBLE, auto.plan, 0)
    assert dict(found.stats)["proof"].startswith(("stopped", "not tried"))


def test_broken_solvers_give_the_plan_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: pulp.LpProblem, options: SolverOptions) -> Answer:
        raise BrokenSolver("gone")

    problem = LIBRARY["chain"]
    problem = with_budget(problem, int(0.6 * SaveAll().plan(problem).peak_bytes))
    monkeypatch.setattr(solver_module, "SOLVERS", {"cbc": broken})
    found = Ilp("cbc", states=0).plan(problem)
    assert found.plan == Auto(reorders=False).plan(problem).plan
    assert dict(found.stats)["fallbacks"] == "1"
    assert dict(found.stats)["proof"] == "stopped at the limit"


@pytest.mark.parametrize("name", ["cbc", "highs"])
def test_a_solver_that_breaks_is_replaced_and_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each round; the proof is that of the other one."""
    pytest.importorskip("highspy")
    calls: list[str] = []

    def broken(model: pulp.LpProblem, options: SolverOptions) -> Answer:
        calls.append(name)
        raise BrokenSolver("it is not installed")

    monkeypatch.setattr(solver_module, "SOLVERS", {**solver_module.SOLVERS, name: broken})
    problem = LIBRARY["chain"]
    problem = with_budget(problem, int(0.6 * SaveAll().plan(problem).peak_bytes))
    found = Ilp(solver=name, states=0).plan(problem)
    stats = dict(found.stats)
    assert found.status is PlanStatus.OPTIMAL
    assert (stats["fallbacks"], stats["solver"]) == (str(len(calls)), "highs" if name == "cbc" else "cbc")
    assert stats["reason"] == f"{name}: it is not installed"
    assert len(calls) == int(stats["rounds"]) > 0


def test_a_solver_that_is_unknown_is_refused() -> None:
    problem = LIBRARY["chain"]
    problem = with_budget(problem, int(0.6 * SaveAll().plan(problem).peak_bytes))
    with pytest.raises(ValueError, match="known are cbc, highs"):
        Ilp(solver="gurobi").plan(problem)


@pytest.mark.parametrize("problem", [LIBRARY["residual"], LIBRARY["user_regions"]])
def test_below_the_floor_is_proven_at_once(problem: RematProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is solved, and the plan is that of the smallest peak found."""

    def solved(model: pulp.LpProblem, options: SolverOptions) -> Answer:
        raise AssertionError("there is nothing to solve")

    monkeypatch.setattr(solver_module, "SOLVERS", {"cbc": solved, "highs": solved})
    floor = peak_floor(problem.graph, problem.costs).peak_bytes
    for budget in (0, floor - 1):
        found = Ilp(effort=500).plan(with_budget(problem, budget))
        assert found.status is PlanStatus.INFEASIBLE
        assert found.plan is not None
        assert floor <= found.peak_bytes <= Auto(500, reorders=False).smallest_peak(problem).peak_bytes
        assert dict(found.stats)["proof"] == f"proven: one operator needs {floor} bytes"


def test_the_search_needs_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(model: pulp.LpProblem, options: SolverOptions) -> Answer:
        raise BrokenSolver("gone")

    monkeypatch.setattr(solver_module, "SOLVERS", {"cbc": gone, "highs": gone})
    problem = LIBRARY["chain"]
    problem = with_budget(problem, int(0.6 * SaveAll().plan(problem).peak_bytes))
    found = Ilp().plan(problem)
    assert (found.status, dict(found.stats)["proof"]) == (PlanStatus.OPTIMAL, "demands")


def test_nothing_to_do_is_optimal() -> None:
    found = Ilp().plan(LIBRARY["pinned_outputs"])
    assert (found.status, found.added_ns) == (PlanStatus.OPTIMAL, 0)
