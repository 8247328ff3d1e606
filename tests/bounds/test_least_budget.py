"""No plan of a class peaks below its floor, and below the floor the bounds know that no plan fits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brute_force import cheapest_added_ns
from builders import LIBRARY, random_problem, random_steps, untagged, with_budget, with_tiers
from remat_compiler.simulate.floor import peak_floor
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.transfers import moved_bytes
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.least_budget import least_budget
from remat_passes.bounds.lower_bound import BoundEffort, lower_bound_ns
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from transfers_at_random import with_random_transfers

EVERY_INSTANT = BoundEffort(instants=1_000, linked=0)


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_peaks_below_the_floor(seed: int) -> None:
    """Random plans, which keep the order of the graph, with their own added time as the limit."""
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 9), rng.randint(2, 9)))
    plan = random_steps(rng, problem, rng.randint(1, 6))
    timeline = simulate(problem.graph, problem.costs, plan)
    limited = replace(problem, max_added_ns=timeline.added_ns)
    assert verify(with_budget(limited, timeline.peak_bytes), plan) == []
    floors = [least_budget(limited, order).peak_bytes for order in OrderClass]
    assert floors == sorted(floors, reverse=True)
    assert floors[0] <= timeline.peak_bytes
    free = [least_budget(problem, order).peak_bytes for order in OrderClass]
    assert all(low <= high for low, high in zip(free, floors))
    assert free[-1] >= peak_floor(problem.graph, problem.costs).peak_bytes


@pytest.mark.parametrize("seed", range(16))
def test_no_plan_fits_below_the_floor(seed: int) -> None:
    """By a search over all plans of the graph's order with two repetitions."""
    rng = Random(seed)
    problem = untagged(random_problem(rng, rng.randint(2, 5), rng.randint(2, 4)))
    floor = least_budget(problem, OrderClass.JOINT).peak_bytes
    assert cheapest_added_ns(with_budget(problem, floor - 1), most_repeats=2) is None
    asked = with_budget(problem, int(0.8 * SaveAll().plan(problem).peak_bytes))
    cheapest = cheapest_added_ns(asked, most_repeats=2)
    if cheapest is not None:
        assert least_budget(replace(asked, max_added_ns=cheapest), OrderClass.JOINT).peak_bytes <= asked.budget_bytes


@pytest.mark.parametrize("order", OrderClass)
@pytest.mark.parametrize("seed", range(8))
def test_bounds_agree_with_the_floor(seed: int, order: OrderClass) -> None:
    """One byte less than an instant needs is proven to be too little, and what it needs is not."""
    rng = Random(seed)
    problem = random_problem(rng, rng.randint(4, 9), rng.randint(4, 9))
    floor = least_budget(problem, order)
    if floor.how == "one instant":
        assert lower_bound_ns(with_budget(problem, floor.peak_bytes - 1), EVERY_INSTANT, order).infeasible
    assert not lower_bound_ns(with_budget(problem, floor.peak_bytes), EVERY_INSTANT, order).infeasible


def test_less_time_takes_more_memory() -> None:
    problem = LIBRARY["chain"]
    limits = (0, 20, 50, 100, 10**6)
    floors = [least_budget(replace(problem, max_added_ns=limit)).peak_bytes for limit in limits]
    assert floors == sorted(floors, reverse=True)
    assert floors[0] > floors[1] > floors[2] > floors[-1] == least_budget(problem).peak_bytes
    for limit, floor in zip(limits, floors):
        smallest = Auto(effort=500).smallest_peak(replace(problem, max_added_ns=limit))
        assert floor <= smallest.peak_bytes
    # Without any time to add, everything must be saved, which the relaxation knows to the byte.
    assert floors[0] == pytest.approx(SaveAll().plan(problem).peak_bytes, rel=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_values_that_are_moved_lower_the_floor(seed: int) -> None:
    rng = Random(seed)
    problem = with_tiers(random_problem(rng, rng.randint(2, 9), rng.randint(2, 9)))
    plan = with_random_transfers(problem.graph, random_steps(rng, problem, 3), rng, share=0.7)
    room = moved_bytes(problem.graph, plan)
    peak = simulate(problem.graph, problem.costs, plan).peak_bytes
    assert least_budget(replace(problem, offload_bytes=room)).peak_bytes <= peak
