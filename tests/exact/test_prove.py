"""Whatever is tried first, the proof ends at the optimum of the original, even where the relaxation is far off."""

from __future__ import annotations

import importlib.util
from functools import partial

import pytest

from exact.exhaustive import optimum_ns
from exact.test_program import tight
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact import prove as prove_module
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.program import Cuts
from remat_passes.exact.prove import Effort, prove
from remat_passes.exact.small_storages import zero_small_storages
from remat_passes.exact.space import Reductions

SOLVER = SolverOptions("highs" if importlib.util.find_spec("highspy") else "cbc", time_limit_s=None)


@pytest.mark.parametrize("negligible", [2, 64])
@pytest.mark.parametrize("states", [0, 1, 50, 2_000])
def test_ends_at_the_optimum(states: int, negligible: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With half the storages weighing nothing most relaxed plans do not fit, and the original has the last word."""
    monkeypatch.setattr(prove_module, "zero_small_storages", partial(zero_small_storages, negligible=negligible))
    for seed in range(states % 7, 120, 10):
        problem = tight(seed)
        expected = optimum_ns(problem, once_per_gap=True)
        free = optimum_ns(problem, once_per_gap=False)
        proof = prove(
            problem,
            None,
            Effort(SOLVER, states, Reductions(), Cuts(), True, 1, 10_000),
        )
        assert proof.closed, seed
        reached = [cost if cost is not None else 1 << 60 for cost in (free, proof.added_ns, expected)]
        assert reached == sorted(reached), seed
        assert (proof.added_ns == expected) or states, seed
        assert proof.added_ns == free or proof.method != "demands", seed
        assert proof.infeasible == (proof.added_ns is None), seed
        if proof.plan is not None:
            timeline = simulate(problem.graph, problem.costs, proof.plan)
            assert verify(problem, proof.plan, timeline.peak_bytes) == []
            assert timeline.added_ns == proof.added_ns


def test_relaxed_plans_that_do_not_fit_come_up() -> None:
    """Otherwise the test above says nothing of them."""
    missed = 0
    for seed in range(60):
        problem = tight(seed)
        light = zero_small_storages(problem, negligible=2)
        proof = prove(
            light,
            None,
            Effort(SOLVER, 2_000, Reductions(), Cuts(), False, 1, 10_000),
        )
        if proof.plan is not None:
            missed += simulate(problem.graph, problem.costs, proof.plan).peak_bytes > problem.budget_bytes
    assert missed >= 5
