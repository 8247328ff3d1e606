"""What the chain planners find: cuts, sizes of layers, and peaks."""

from __future__ import annotations

from itertools import combinations

import pytest

from builders import LIBRARY, ProblemBuilder, chain, encoder_decoder, residual, with_budget
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.chains.chain import Forward, chain_of, segmented_plan
from remat_passes.chains.hong import Chain
from remat_passes.planning.chain_dp import Algorithm, ChainDp
from remat_passes.planning.chen_sqrt import ChenSqrt
from remat_passes.planning.interface import Candidate, choose
from remat_passes.planning.min_cut import MinCut
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order

SMALLEST = 0
"""No plan fits, so that planners go for the smallest peak."""


def peak(planner: ChainDp | ChenSqrt | SaveAll, problem: RematProblem) -> int:
    return planner.plan(with_budget(problem, SMALLEST)).peak_bytes


def test_residual_cuts_stand_between_blocks() -> None:
    problem = residual(blocks=12, size=8000)
    forward = Forward.of(StepIndex.of(problem.graph))
    assert [forward.crossing[t] for t in forward.cuts(12)] == [8000] * len(forward.cuts(12))
    assert 9 <= len(forward.cuts(12)) <= 12


def test_layers_of_a_plain_chain_are_its_values() -> None:
    b = ProblemBuilder()
    values = [b.storage(9, StorageKind.INPUT)]
    for size in (10, 20, 30, 40):
        values.append(b.forward([values[-1]], size))
    grad = b.storage(40, StorageKind.TANGENT)
    for value in reversed(values):
        grad = b.backward([grad, value], 1, 3)
    index = StepIndex.of(b.graph())
    order = baseline_order(index, Placement.LAZY)
    found = chain_of(index, order, Forward.of(index), (1, 2, 3))
    # Layer 0 is the input, whose backward operator leaves a gradient too.
    assert found == Chain((0, 10, 20, 30, 0), (3, 10, 20, 30, 40), (3, 3, 3, 3, 3))


@pytest.mark.parametrize("length", [16, 64, 256])
def test_peaks_of_plain_chains_grow_like_the_root(length: int) -> None:
    """Saving sqrt(n) values and one segment of as many; the rest is for gradients and what is in flight."""
    problem, size = chain(length, size=10_000, gradient=0), 10_000
    bound = 2 * (length**0.5 + 3) * size
    assert peak(ChenSqrt(), problem) <= bound
    assert peak(ChainDp(persistent=()), problem) <= bound
    assert peak(SaveAll(), problem) >= (length - 1) * size


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_chain_dp_is_near_the_best_cuts(algorithm: Algorithm) -> None:
    """The best of all 2^9 sets of cuts, by the simulator; Algorithm 3's objective is another one."""
    problem = chain(10, gradient=500)
    index = StepIndex.of(problem.graph)
    forward, order = Forward.of(index), baseline_order(index, Placement.LAZY)
    best = min(
        simulate(problem.graph, problem.costs, segmented_plan(index, order, forward, cuts)).peak_bytes
        for count in range(10)
        for cuts in combinations(range(1, 10), count)
    )
    assert best <= peak(ChainDp(algorithm, persistent=()), problem) <= 1.15 * best


def test_encoder_memory_is_carried_not_made_again() -> None:
    problem = encoder_decoder(layers=8)
    memory = problem.graph.ops[7]
    assert all(memory.writes[0] in op.reads for op in problem.graph.ops[8:16])
    result = ChainDp(persistent=()).plan(with_budget(problem, SMALLEST))
    assert result.plan is not None
    assert result.plan.steps.count(memory.id) == 1


def test_last_segment_is_not_made_again() -> None:
    result = ChenSqrt().plan(with_budget(chain(16), SMALLEST))
    assert result.plan is not None
    assert result.plan.steps.count(result.plan.steps[result.plan.boundary - 1]) == 1


@pytest.mark.parametrize("planner", [ChenSqrt(), ChainDp()])
def test_smaller_budgets_cost_more_until_none_fits(planner: ChainDp | ChenSqrt) -> None:
    problem = LIBRARY["residual"]
    whole = peak(SaveAll(), problem)
    results = [planner.plan(with_budget(problem, int(whole * f))) for f in (1.0, 0.7, 0.5, 0.3, 0.0)]
    added = [r.added_ns for r in results if r.status is PlanStatus.FEASIBLE]
    assert added == sorted(added)
    assert added[0] == 0
    assert results[-1].status is PlanStatus.INFEASIBLE
    assert results[-1].peak_bytes <= min(r.peak_bytes for r in results)


def test_min_cut_needs_a_reference() -> None:
    result = MinCut().plan(chain(4))
    assert (result.status, result.plan) == (PlanStatus.FAILED, None)
    assert "reference" in dict(result.stats)["reason"]


def test_choice_prefers_plans_within_the_allowed_time() -> None:
    problem = chain(16)
    index = StepIndex.of(problem.graph)
    forward, order = Forward.of(index), baseline_order(index, Placement.LAZY)
    slow, quick = (Candidate(segmented_plan(index, order, forward, cuts)) for cuts in ((4, 8, 12), ()))

    def chosen(budget: int, max_added_ns: int | None) -> PlanResult:
        limited = RematProblem(problem.graph, problem.costs, budget, max_added_ns)
        return choose(limited, "test", [slow, quick])

    assert chosen(SMALLEST, None).plan == slow.plan
    assert chosen(SMALLEST, 0).plan == quick.plan
    assert chosen(1 << 60, None).plan == quick.plan
    assert choose(problem, "test", []).status is PlanStatus.FAILED


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_save_all_repeats_only_what_the_user_forbids_to_save(name: str) -> None:
    result = SaveAll().plan(LIBRARY[name])
    assert result.plan is not None
    assert (result.added_ns > 0) == (name == "user_regions")
    assert all(
        LIBRARY[name].graph.ops[i].phase is not Phase.BACKWARD for i in result.plan.steps[: result.plan.boundary]
    )
