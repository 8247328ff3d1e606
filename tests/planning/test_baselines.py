"""The planners that others are compared with: `knapsack`, `dtr` and `greedy`, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import cheapest_added_ns
from builders import ProblemBuilder, chain, encoder_decoder, generators, problems, random_problem, residual, with_budget
from remat_compiler.ir.graph import OpId, StorageKind
from remat_compiler.ir.plan import Plan, PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.eviction.memory import last_needs, run
from remat_passes.planning.auto import Auto
from remat_passes.planning.chen_sqrt import ChenSqrt
from remat_passes.planning.dtr import Dtr
from remat_passes.planning.greedy import Greedy
from remat_passes.planning.knapsack import Cuts, Knapsack, Table
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.max_flow import sink_side
from remat_passes.sequences.profile import arrays_of
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, recompute_closure

BASELINES = (Knapsack(), Dtr(), Greedy())
MOST_REPEATS = 2


@cache
def tiny_problem(seed: int) -> tuple[RematProblem, int | None]:
    """A chain with skips, with a budget half-way down, and the least added time of up to `MOST_REPEATS` repetitions."""
    rng = Random(seed)
    b = ProblemBuilder()
    values = [b.storage(rng.randint(1, 9), StorageKind.INPUT)]
    for _ in range(rng.randint(3, 5)):
        skip = [rng.choice(values)] if rng.random() < 0.3 else []
        values.append(b.forward(sorted({values[-1], *skip}), rng.randint(1, 9), time=rng.randint(1, 20)))
    grad = b.storage(rng.randint(1, 4), StorageKind.TANGENT)
    for value in reversed(values[:-1]):
        grad = b.backward([grad, value], rng.randint(1, 4), gradient=1)
    problem = b.problem()
    high, low = SaveAll().plan(problem).peak_bytes, Auto(effort=100).smallest_peak(problem).peak_bytes
    problem = with_budget(problem, (low + high) // 2)
    return problem, cheapest_added_ns(problem, MOST_REPEATS, in_forward=True)


@pytest.mark.parametrize("planner", BASELINES, ids=lambda planner: planner.name)
def test_no_plan_is_cheaper_than_the_optimum(planner: Planner) -> None:
    compared = 0
    for seed in range(20):
        problem, best = tiny_problem(seed)
        result = planner.plan(problem)
        assert result.plan is not None
        if result.status is PlanStatus.FEASIBLE:
            assert verify(problem, result.plan, result.peak_bytes) == []
            if len(result.plan.steps) - len(problem.graph.ops) <= MOST_REPEATS:
                assert best is not None
                assert result.added_ns >= best
                compared += result.added_ns > 0
    assert compared >= 4


@pytest.mark.parametrize(
    ("planner", "make"),
    [
        # A knapsack knows no peak: of a uniform chain it drops the last values, which lowers nothing.
        *((planner, residual) for planner in BASELINES),
        *((planner, make) for planner in BASELINES[1:] for make in (chain, encoder_decoder)),
    ],
)
def test_budgets_between_are_met_and_cost_something(planner: Planner, make: Callable[[], RematProblem]) -> None:
    problem = make()
    all_saved = SaveAll().plan(problem)
    result = planner.plan(with_budget(problem, int(0.8 * all_saved.peak_bytes)))
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns > 0
    assert planner.plan(with_budget(problem, all_saved.peak_bytes)).added_ns <= all_saved.added_ns


@settings(max_examples=60)
@given(problem=problems(), fraction=st.sampled_from((0.5, 0.8)))
def test_a_larger_budget_never_makes_the_knapsack_dearer(problem: RematProblem, fraction: float) -> None:
    """Its plans do not depend on the budget, which only chooses among them."""
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    small, large = (Knapsack().plan(with_budget(problem, b)) for b in (budget, budget + budget // 4))
    assert small.status is PlanStatus.INFEASIBLE or large.added_ns <= small.added_ns


@settings(max_examples=150)
@given(
    arcs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 20)), max_size=24).map(
        lambda arcs: [(a, b, c) for a, b, c in arcs if a != b]
    )
)
def test_the_cut_is_minimal_in_capacity_and_smallest_on_the_sinks_side(arcs: list[tuple[int, int, int]]) -> None:
    behind = sink_side(8, np.array(arcs, np.int64).reshape(-1, 3))
    assert behind[1]
    assert not behind[0]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(8))
    for a, b, c in arcs:
        before = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=before + c)
    cut = sum(c for a, b, c in arcs if behind[b] and not behind[a])
    assert cut == nx.minimum_cut_value(graph, 0, 1)
    # The smallest sink side is the source side of the reversed network as networkx finds it.
    _, (smallest, _) = nx.minimum_cut(graph.reverse(), 1, 0)
    assert set(np.flatnonzero(behind).tolist()) <= set(smallest)


@settings(max_examples=60)
@given(rng=generators())
def test_what_is_saved_is_the_fewest_bytes_that_need_no_chosen_operator(rng: Random) -> None:
    problem = random_problem(rng, forwards=rng.randint(1, 6), backwards=rng.randint(1, 4))
    index = StepIndex.of(problem.graph)
    order = baseline_order(index, Placement.LAZY)
    cuts = Cuts.of(index, order)
    chosen = [op for op in order.forward if cuts.may_choose(op) and rng.random() < 0.5]
    barred = {*chosen, *(op for op in order.forward if index.pinned[op])}
    values = [s for op in order.forward for s in index.writes[op] if not index.kept[s] and not index.unsavable[s]]
    wanted = [s for op in order.backward for s in index.reads[op] if index.producer[s] in set(order.forward)]

    def bytes_saved(saved: set[int]) -> int | None:
        at_hand = [s in saved or index.kept[s] for s in range(len(index.producer))]
        again = recompute_closure(index, wanted, at_hand)
        return None if barred & set(again) else sum(index.size_bytes[s] for s in saved)

    found = set(np.flatnonzero(cuts.saved(chosen)).tolist()) - {s for s, kept in enumerate(index.kept) if kept}
    subsets = (set(some) for size in range(len(values) + 1) for some in combinations(values, size))
    sizes = [size for size in map(bytes_saved, subsets) if size is not None]
    assert bytes_saved(found) == min(sizes)


@settings(max_examples=60)
@given(rng=generators())
def test_the_knapsack_is_filled_best(rng: Random) -> None:
    problem = random_problem(rng, forwards=rng.randint(1, 8), backwards=rng.randint(1, 8))
    index = StepIndex.of(problem.graph)
    cuts = Cuts.of(index, baseline_order(index, Placement.LAZY))
    items = [op for op in cuts.order.forward if cuts.may_choose(op)]
    full = max(sum(index.size_bytes), 1)
    table = Table.of(cuts, items, problem.costs.time_ns, full, 50)
    weight = dict(zip(items, table.weights))
    time = dict(zip(items, cuts.times(items, problem.costs.time_ns)))
    capacity = rng.randrange(51)
    subsets = (some for size in range(len(items) + 1) for some in combinations(items, size))
    best = max(sum(time[op] for op in some) for some in subsets if sum(weight[op] for op in some) <= capacity)
    chosen = table.best(capacity)
    assert sum(weight[op] for op in chosen) <= capacity
    assert sum(time[op] for op in chosen) == best


def test_the_reference_is_what_a_ratio_of_one_means() -> None:
    """A reference that saves little leaves little to be saved at any ratio, but is itself a plan."""
    problem = residual()
    reference = ChenSqrt().plan(with_budget(problem, 0))
    referenced = RematProblem(problem.graph, problem.costs, reference.peak_bytes, None, reference.plan)
    result = Knapsack().plan(referenced)
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns <= reference.added_ns


@settings(max_examples=60)
@given(problem=problems())
def test_dtr_evicts_nothing_where_all_fits(problem: RematProblem) -> None:
    result = Dtr().plan(problem)
    assert ("evictions", "0") in result.stats
    assert result.added_ns <= SaveAll().plan(problem).added_ns


@settings(max_examples=100)
@given(problem=problems(), fraction=st.sampled_from((0.0, 0.4, 0.6, 0.8, 1.0)), placement=st.sampled_from(Placement))
def test_what_dtr_takes_to_be_live_is_no_less_than_the_peak(
    problem: RematProblem, fraction: float, placement: Placement
) -> None:
    index = StepIndex.of(problem.graph)
    order = baseline_order(index, placement)
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    program = np.array((*order.forward, *order.backward), np.int64)
    needs = last_needs(index, order)
    trace, boundary, _, highest = run(arrays_of(problem), program, len(order.forward), budget, needs, 500)
    plan = Plan(tuple(map(OpId, trace.tolist())), int(boundary))
    assert simulate(problem.graph, problem.costs, plan).peak_bytes <= highest
    first = dict.fromkeys(plan.steps)
    assert list(first) == program.tolist()


def test_dtr_gives_up_instead_of_running_for_ever() -> None:
    problem = chain(length=60)
    result = Dtr(patience=1).plan(with_budget(problem, 1))
    assert result.plan is not None
    assert result.status is PlanStatus.INFEASIBLE
    assert len(result.plan.steps) < 4 * len(problem.graph.ops)


def test_greedy_drops_the_value_of_most_bytes_for_the_time() -> None:
    """Two of the layers are four times as fast for the same bytes: those are made again."""
    problem = chain(length=12)
    times = list(problem.costs.time_ns)
    times[2] = times[5] = 2
    costs = type(problem.costs)(tuple(times), problem.costs.workspace_bytes, problem.costs.provenance)
    priced = RematProblem(problem.graph, costs, SaveAll().plan(problem).peak_bytes - 2 * 8000)
    result = Greedy().plan(priced)
    assert result.status is PlanStatus.FEASIBLE
    assert result.plan is not None
    assert sorted(op for op in set(result.plan.steps) if result.plan.steps.count(op) > 1) == [2, 5]


def test_segments_are_counted_with_the_last() -> None:
    problem = chain()
    (root, whole) = (dict(ChenSqrt(factors=(factor,)).plan(problem).stats)["segments"] for factor in (1.0, 0.0))
    assert int(root) > int(whole) == 1
