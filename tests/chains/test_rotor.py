"""Schedules of several repetitions: optimal on uniform chains, valid on all graphs, never worse than one repetition."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings

from builders import LIBRARY, ProblemBuilder, chain, generators, random_problem, with_budget
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.revolve import fewest_repetitions
from remat_passes.chains.chain import Forward
from remat_passes.chains.rotor_layers import layers_of
from remat_passes.planning.chain_dp import ChainDp
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order
from studies.uniform_chains.uniform_chains import STEP_NS, uniform_chain

ONE_REPETITION = ChainDp(persistent=())


def perceptron(layers: int, size: int = 8000) -> RematProblem:
    """Layers whose backward reads their input and their output, as a linear map with tanh behind it."""
    b = ProblemBuilder()
    values = [b.storage(size, StorageKind.INPUT)]
    for _ in range(layers):
        values.append(b.forward([values[-1]], size))
    grad = b.storage(8, StorageKind.TANGENT)
    for k in reversed(range(layers)):
        grad = b.backward([grad, values[k], values[k + 1]], size)
    return b.problem()


@pytest.mark.parametrize(
    ("length", "slots"), [*product((1, 2, 5, 12, 30), (1, 2, 3, 5, 9)), (60, 2), (90, 4), (200, 3)]
)
def test_uniform_chains_are_reversed_at_the_binomial_optimum(length: int, slots: int) -> None:
    problem = uniform_chain(length, slots)
    result = ChainDp().plan(problem)
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns == STEP_NS * fewest_repetitions(length, slots)


def test_layers_of_a_chain_are_its_steps() -> None:
    problem = uniform_chain(4, 2)
    index = StepIndex.of(problem.graph)
    order = baseline_order(index, Placement.LAZY)
    layers = layers_of(problem, index, order, Forward.of(index), (1, 2, 3))
    size = max(s.size_bytes for s in problem.graph.storages)
    assert layers.state.tolist() == [[0, size, size, size], [0, 0, size, size], [0, 0, 0, size], [0, 0, 0, 0]]
    # The backward of each step reads the state in front of it, and nothing that the step makes.
    assert layers.again_ns.tolist() == [0, 0, 0, 0]
    # The last operator reads the input alone, which is always there.
    assert [len(ops) for ops in layers.backward] == [0, 2, 1, 1]


@pytest.mark.parametrize("layers", [12, 40])
def test_where_the_backward_reads_results_too_less_memory_costs_more(layers: int) -> None:
    problem, size = perceptron(layers), 8000
    added = []
    for states in (layers + 2, 10, 8, 7, 6):
        result = ChainDp().plan(with_budget(problem, states * size + 100))
        assert result.status is PlanStatus.FEASIBLE
        added.append(result.added_ns)
    assert added == sorted(added)
    # Six states are two of a layer, two gradients, and two that are held: some layers run three times and more.
    result = ChainDp().plan(with_budget(problem, 6 * size + 100))
    assert result.plan is not None
    assert max(map(result.plan.steps.count, range(layers))) >= 3


@settings(max_examples=60)
@given(generators())
def test_plans_of_any_graph_are_valid_and_no_slower_than_with_one_repetition(rng: Random) -> None:
    problem = random_problem(rng)
    whole = SaveAll().plan(problem).peak_bytes
    for fraction in (0.9, 0.6):
        asked = with_budget(problem, int(fraction * whole))
        result, simple = ChainDp().plan(asked), ONE_REPETITION.plan(asked)
        assert result.plan is not None
        assert verify(replace(asked, budget_bytes=max(result.peak_bytes, asked.budget_bytes)), result.plan) == []
        if simple.status is PlanStatus.FEASIBLE:
            assert result.status is PlanStatus.FEASIBLE
            assert result.added_ns <= simple.added_ns
        else:
            assert result.peak_bytes <= simple.peak_bytes


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_known_problems_peak_no_higher(name: str) -> None:
    problem = with_budget(LIBRARY[name], 0)
    assert ChainDp().plan(problem).peak_bytes <= ONE_REPETITION.plan(problem).peak_bytes


def test_a_chain_longer_than_the_tables_is_cut_coarser() -> None:
    problem = chain(600, gradient=0)
    result = ChainDp().plan(with_budget(problem, SaveAll().plan(problem).peak_bytes // 12))
    assert result.status is PlanStatus.FEASIBLE
    assert dict(result.stats)["algorithm"] == "persistent"
