"""The networks of instants against enumeration of all their cuts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings

from builders import LIBRARY, generators, random_problem, with_budget
from remat_compiler.ir.graph import Phase
from remat_passes.bounds.counted import counted_bound_ns
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.network import Network, Point, network_of
from remat_passes.bounds.one_instant import integer_bound_ns
from remat_passes.bounds.pricing import Pricing, Work
from remat_passes.bounds.relaxed import relax
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.exact.backends import SolverOptions
from remat_passes.orders.separator import SOURCE
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much)
LARGEST = 12
"""Nodes of the largest network that is enumerated."""


def points(network: Network) -> list[Point]:
    """Every cut that cuts no infinite arc."""
    found = []
    inner = network.nodes - 2
    arcs = list(zip(*(c.tolist() for c in (network.tail, network.head, network.time_ns, network.size_bytes))))
    for mask in range(1 << inner):
        side = [True, False, *(bool(mask >> k & 1) for k in range(inner))]
        assert side[SOURCE]
        cut = [side[tail] and not side[head] for tail, head, _, _ in arcs]
        if any(c and infinite for c, infinite in zip(cut, network.infinite.tolist())):
            continue
        found.append(Point(sum(a[2] for a, c in zip(arcs, cut) if c), sum(a[3] for a, c in zip(arcs, cut) if c)))
    return found


def small_networks(rng: Random) -> list[Network]:
    """Networks of a random problem that are worth enumerating."""
    problem = random_problem(rng, rng.randint(2, 6), rng.randint(2, 5))
    graph = StepGraph.of(problem)
    ops = [op.id for op in problem.graph.ops if graph.live[op.id] and op.phase is not Phase.TANGENT_FREE]
    order = rng.choice(list(OrderClass))
    made = [network_of(graph, Instant.of(graph, op, order)) for op in ops]
    return [network for network in made if 2 < network.nodes <= LARGEST]


@settings(max_examples=120, suppress_health_check=SLOW)
@given(rng=generators())
def test_pricing_lies_below_the_best_point_that_fits(rng: Random) -> None:
    for network in small_networks(rng)[:3]:
        every = points(network)
        for room in sorted({p.size_bytes for p in every} | {min(p.size_bytes for p in every) - 1})[:6]:
            fitting = [p.time_ns for p in every if p.size_bytes <= room]
            found = relax(network, room)
            assert found.feasible == bool(fitting)
            if found.feasible:
                assert found.bound_ns <= min(fitting) <= found.fits.point.time_ns
                # The bound of the linear relaxation: no mixture of two points is cheaper, and some mixture is as cheap.
                assert found.bound_ns == -(-_best_mixture(every, room) // 1)


def _best_mixture(every: list[Point], room: int) -> float:
    """Least time on the lower hull of `every` at `room` bytes, a whisker below for the rounding up."""
    best = min(float(p.time_ns) for p in every if p.size_bytes <= room)
    for a in every:
        for b in every:
            if a.size_bytes <= room < b.size_bytes:
                share = (room - a.size_bytes) / (b.size_bytes - a.size_bytes)
                best = min(best, a.time_ns + share * (b.time_ns - a.time_ns))
    return best - 1e-9 if best > 0 else 0.0


@settings(max_examples=120, suppress_health_check=SLOW)
@given(rng=generators())
def test_counting_lies_between_pricing_and_the_best_point(rng: Random) -> None:
    for network in small_networks(rng)[:3]:
        every = points(network)
        for room in sorted({p.size_bytes for p in every})[:6]:
            found = relax(network, room)
            best = min(p.time_ns for p in every if p.size_bytes <= room)
            assert found.bound_ns <= counted_bound_ns(network, room, found, Work()) <= best


def test_layers_that_are_alike_are_dropped_whole() -> None:
    """Sixteen equal layers of 10 ns: between two budgets at which one more has to go, pricing mixes, counting steps."""
    problem = LIBRARY["chain"]
    graph, peak = StepGraph.of(problem), SaveAll().plan(problem).peak_bytes
    higher = 0
    for fraction in (0.62, 0.65, 0.68, 0.71, 0.74):
        asked = with_budget(problem, int(fraction * peak))
        pricing = Pricing(graph, asked.budget_bytes, OrderClass.ANY, Work())
        pricing.price(op.id for op in problem.graph.ops)
        op = pricing.best(1)[0]
        counted = counted_bound_ns(*pricing.network(op), pricing.priced[op], pricing.work)
        assert pricing.priced[op].bound_ns <= counted <= Auto().plan(asked).added_ns
        higher += counted > pricing.priced[op].bound_ns
    assert higher >= 3


@pytest.mark.parametrize("seed", range(12))
def test_branch_and_bound_finds_the_best_point(seed: int) -> None:
    rng = Random(seed)
    for network in small_networks(rng)[-1:]:
        every = points(network)
        sizes = sorted({p.size_bytes for p in every})
        room = sizes[len(sizes) // 2]
        best = min(p.time_ns for p in every if p.size_bytes <= room)
        found = integer_bound_ns(network, room, SolverOptions(time_limit_s=None, node_limit=1000))
        assert found is not None
        assert best - 2 <= found <= best


def test_branch_and_bound_proves_that_nothing_fits() -> None:
    problem = with_budget(random_problem(Random(3), 8, 6), 0)
    assert SaveAll().plan(problem).peak_bytes > 0
    graph = StepGraph.of(problem)
    last = max(op.id for op in problem.graph.ops if graph.live[op.id] and op.phase is Phase.BACKWARD)
    network = network_of(graph, Instant.of(graph, last, OrderClass.JOINT))
    assert integer_bound_ns(network, -1, SolverOptions(time_limit_s=None)) is None
