"""Plans that hold what linked instants hold: valid, in the order asked for, and of use to the search."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from builders import LIBRARY, random_problem, random_steps, untagged, with_budget
from remat_compiler.ir.plan import Plan
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.linked import Held
from remat_passes.bounds.lower_bound import BoundEffort
from remat_passes.bounds.seeds import first_order, linked_seed, plan_holding
from remat_passes.planning.portfolio import improve
from remat_passes.planning.save_all import SaveAll
from remat_passes.search.linked_seeds import keep_linked_seeds
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order

LINKED = BoundEffort(instants=8, near=0, splits=0)


@pytest.mark.parametrize("seed", range(40))
def test_plans_that_hold_anything_are_valid(seed: int) -> None:
    """Values held at random, at instants at random, those that are not there yet included."""
    rng = Random(seed)
    problem = random_problem(rng, rng.randint(2, 9), rng.randint(2, 9))
    index = StepIndex.of(problem.graph)
    order = baseline_order(index, rng.choice(list(Placement)))
    ops = [*order.forward, *order.backward]
    made = [s for s, producer in enumerate(index.producer) if producer >= 0]
    held = [Held(op, frozenset(rng.sample(made, rng.randint(0, len(made))))) for op in rng.sample(ops, len(ops) // 2)]
    plan = plan_holding(index, order, held)
    assert verify(with_budget(problem, simulate(problem.graph, problem.costs, plan).peak_bytes), plan) == []
    firsts = first_order(plan)
    # Tangent-free operators may lose their first execution to one behind the boundary.
    kept = [op for op in order.forward if index.demanded[op]]
    assert [op for op in firsts.forward if index.demanded[op]] == kept


@pytest.mark.parametrize("seed", range(12))
def test_a_seed_keeps_the_order_of_its_plan(seed: int) -> None:
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(4, 9), rng.randint(4, 9)))
    like = random_steps(rng, problem, 3)
    asked = with_budget(problem, int(0.8 * SaveAll().plan(problem).peak_bytes))
    index = StepIndex.of(problem.graph)
    seed_plan = linked_seed(asked, index, like, LINKED).plan
    if seed_plan is not None:
        assert verify(with_budget(problem, 1 << 60), seed_plan) == []
        demanded = [op for op in first_order(like).backward if index.demanded[op]]
        assert [op for op in first_order(seed_plan).backward if index.demanded[op]] == demanded


def test_what_is_not_held_is_made_again() -> None:
    problem = LIBRARY["chain"]
    index = StepIndex.of(problem.graph)
    order = baseline_order(index, Placement.LAZY)
    assert plan_holding(index, order, []) == Plan.saving_all(problem.graph)
    nothing = plan_holding(index, order, [Held(order.backward[0], frozenset())])
    repeated = [op for op in set(nothing.steps) if nothing.steps.count(op) > 1]
    assert sorted(repeated) == sorted(op for op in order.forward if op in repeated)
    timelines = [simulate(problem.graph, problem.costs, plan) for plan in (nothing, Plan.saving_all(problem.graph))]
    assert timelines[0].added_ns > timelines[1].added_ns == 0


@pytest.mark.parametrize("family", LIBRARY)
def test_a_seed_never_makes_the_best_entry_worse(family: str) -> None:
    problem = LIBRARY[family]
    asked = with_budget(problem, int(0.5 * SaveAll().plan(problem).peak_bytes))
    search = SequenceSearch.of(asked, 300, 1)
    before = search.run()
    search.work_left = 17
    spent = keep_linked_seeds(search, 1 << 40)
    assert search.work_left == 17
    assert search.rank(search.pool[0]) <= search.rank(before)
    assert spent > 0 or not problem.graph.ops
    again = SequenceSearch.of(asked, 300, 1)
    again.run()
    assert keep_linked_seeds(again, 1 << 40) == spent
    assert np.array_equal(again.pool[0].steps, search.pool[0].steps)


@pytest.mark.parametrize(("family", "fraction"), [("chain", 0.35), ("residual", 0.45), ("user_regions", 0.75)])
def test_seeds_find_what_a_short_search_does_not(family: str, fraction: float) -> None:
    problem = LIBRARY[family]
    asked = with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))
    search = SequenceSearch.of(asked, 5, 1)
    before = search.run()
    assert search.solved
    keep_linked_seeds(search, 1 << 40)
    assert search.pool[0].time < before.time
    assert verify(asked, search.pool[0].plan(), search.pool[0].peak) == []


def test_planning_takes_seeds_where_a_step_may_gain_by_them() -> None:
    problem = LIBRARY["chain"]
    asked = with_budget(problem, int(0.35 * SaveAll().plan(problem).peak_bytes))
    slow = replace(asked, costs=replace(asked.costs, time_ns=tuple(10**7 * t for t in asked.costs.time_ns)))
    improved = []
    for one in (asked, slow):
        search = SequenceSearch.of(one, 5, 1)
        before = search.run()
        improved.append(improve(search, None).time < before.time)
    assert improved == [False, True]
