"""What reductions claim of the optimum, and that plans lift: against exhaustive search on small random problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from random import Random

import pytest

from builders import ProblemBuilder, random_problem, random_steps, with_budget
from exact.exhaustive import optimum_ns
from exact.test_program import tight
from remat_compiler.ir.graph import Phase, StorageId, StorageKind
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.demand_search import DemandLimits, search_demands
from remat_passes.exact.space import Reductions
from remat_passes.exact.stages import space_of
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.reductions.contract import contract
from remat_passes.reductions.needless import drop_needless
from remat_passes.reductions.reduced import Claim, Reduced, reduce_by
from remat_passes.reductions.weightless import weightless

ALL: dict[str, Callable[[RematProblem], Reduced]] = {
    "needless": drop_needless,
    "contract": contract,
    "contract more": partial(contract, exact=False),
    "weightless": partial(weightless, negligible=3),
    "same": lambda problem: reduce_by(problem, [drop_needless, contract]),
}
PROBLEMS = 120
GROUPS = 3


@cache
def chained(seed: int) -> RematProblem:
    """A random chain whose backward has runs of operators that only go on with what the one before made."""
    rng = Random(seed)
    b = ProblemBuilder()
    values = [b.storage(rng.randrange(30, 60), StorageKind.INPUT)]
    for _ in range(rng.randint(2, 4)):
        values.append(b.forward([values[-1]], rng.choice([20, 40, 60]), time=rng.randrange(1, 50)))
    grad = b.storage(rng.randrange(40), StorageKind.TANGENT)
    for value in reversed(values[1:]):
        for _ in range(rng.randint(1, 2)):
            grad = shrunk(b, rng, [grad])
        grad = shrunk(b, rng, [grad, value])
    problem = b.problem()
    low = Auto(reorders=False, time_limit=0).plan(with_budget(problem, 0)).peak_bytes
    full = SaveAll().plan(problem).peak_bytes
    return with_budget(problem, low + int((full - low) * rng.choice([0.0, 0.1, 0.3, 0.6])))


def shrunk(b: ProblemBuilder, rng: Random, reads: list[StorageId]) -> StorageId:
    """A backward operator that makes no more than it reads, most often."""
    size = b.storages[reads[0]].size_bytes
    made = rng.choice([size, size // 2, rng.randrange(60)])
    workspace = rng.choice([0, 0, rng.randrange(40)])
    return b.run(
        Phase.BACKWARD, reads, [(made, StorageKind.TEMPORARY)], time=rng.randrange(1, 40), workspace=workspace
    )[0]


def drawn(seed: int) -> RematProblem:
    return chained(seed) if seed % 2 else tight(seed)


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("name", sorted(ALL))
def test_claims_of_the_optimum(name: str, group: int) -> None:
    """With any order and number of executions in a gap: equal, not above or not below, as the reduction says."""
    for seed in range(group, PROBLEMS, GROUPS):
        problem = drawn(seed)
        reduced = ALL[name](problem)
        check_graph(reduced.problem.graph)
        one, two = (optimum_ns(p, once_per_gap=False) for p in (problem, reduced.problem))
        original, smaller = (cost if cost is not None else 1 << 60 for cost in (one, two))
        assert reduced.claim is not Claim.SAME or original == smaller, seed
        assert reduced.claim is not Claim.BELOW or original >= smaller, seed
        assert reduced.claim is not Claim.ABOVE or original <= smaller, seed


@pytest.mark.parametrize("name", sorted(ALL))
def test_optimal_plans_lift(name: str) -> None:
    """The lifted optimum is valid, costs what it said, and needs no more where the claim says so."""
    for seed in range(PROBLEMS):
        problem = drawn(seed)
        reduced = ALL[name](problem)
        found = search_demands(space_of(reduced.problem, Reductions()), None, DemandLimits(1_000, 1_000_000))
        if found.plan is None:
            continue
        plan = reduced.lift(found.plan)
        peak = simulate(reduced.problem.graph, reduced.problem.costs, found.plan).peak_bytes
        timeline = simulate(problem.graph, problem.costs, plan)
        room = problem.budget_bytes if reduced.claim is not Claim.BELOW else timeline.peak_bytes
        assert verify(with_budget(problem, room), plan) == [], seed
        assert timeline.added_ns == found.added_ns
        assert reduced.claim is Claim.BELOW or timeline.peak_bytes <= peak


@pytest.mark.parametrize("name", sorted(ALL))
def test_any_plans_lift(name: str) -> None:
    """Sensible or not: the added time never rises, nor the peak unless the problem is a relaxation."""
    for seed in range(PROBLEMS):
        problem = random_problem(Random(seed))
        reduced = ALL[name](problem)
        plan = random_steps(Random(seed + 1), reduced.problem)
        small = simulate(reduced.problem.graph, reduced.problem.costs, plan)
        large = simulate(problem.graph, problem.costs, reduced.lift(plan))
        assert large.added_ns == small.added_ns
        assert reduced.claim is Claim.BELOW or large.peak_bytes <= small.peak_bytes
        assert reduced.claim is not Claim.BELOW or large.peak_bytes >= small.peak_bytes


@pytest.mark.parametrize("name", sorted(ALL))
def test_each_finds_something(name: str) -> None:
    """Otherwise the tests above say nothing."""
    changed = [seed for seed in range(PROBLEMS) if ALL[name](drawn(seed)).problem.graph != drawn(seed).graph]
    assert len(changed) >= PROBLEMS // 10


def test_claims_combine() -> None:
    problem = chained(1)
    light = partial(weightless, negligible=1)
    assert reduce_by(problem, [drop_needless, contract]).claim is Claim.SAME
    assert reduce_by(problem, [drop_needless, light]).claim is Claim.BELOW
    with pytest.raises(ValueError, match="bounds from below"):
        reduce_by(problem, [light, partial(contract, exact=False)])


def test_weightless_wants_a_factor() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        weightless(chained(1), negligible=0)


def test_limits_stay() -> None:
    problem = replace(chained(1), max_added_ns=5)
    for reduction in ALL.values():
        reduced = reduction(problem).problem
        assert (reduced.budget_bytes, reduced.max_added_ns) == (problem.budget_bytes, 5)
