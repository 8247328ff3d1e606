"""An order of the step in which tangent-free operators run in the forward if that leaves fewer bytes to save.

The derivative of an activation is a chain of tangent-free operators from several saved values to one:

    lazy     f0 f1 f2 | t3 t4 b5        alive at the boundary: what t3 and t4 read
    early    f0 t3 f1 t4 f2 | b5        alive at the boundary: what t4 makes

Which of them pay off is a minimum cut at the instant of the highest step, at the price of a byte there; see
`remat_passes.bounds.network`.  No operator runs more often for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat_compiler.ir.graph import Phase
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.network import network_of
from remat_passes.bounds.relaxed import relax
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute


def early_orders(problem: RematProblem) -> list[Order]:
    """Orders with some tangent-free operators in the forward: up to two, best first; none if none pays off."""
    index = StepIndex.of(problem.graph)
    lazy = baseline_order(index, Placement.LAZY)
    graph = StepGraph.of(problem)
    highest = _highest(problem, graph, index, lazy)
    if highest is None:
        return []
    instant = Instant.of(graph, highest, OrderClass.JOINT)
    network = network_of(graph, instant)
    # The two cuts around the room that the budget leaves: one fits there, the other takes less time and more bytes.
    found = relax(network, problem.budget_bytes - instant.held_bytes)
    chosen = [_allowed(index, network.done(cut)) for cut in (found.fits, found.over) if cut is not None]
    return list(dict.fromkeys(_with_early(index, lazy, early) for early in chosen if early))


def _highest(problem: RematProblem, graph: StepGraph, index: StepIndex, order: Order) -> int | None:
    """The operator of the backward that runs when most bytes are alive, if all is saved; `None` without a backward."""
    plan = recompute(index, order, index.all_savable())
    live_bytes = simulate(problem.graph, problem.costs, plan).live_bytes
    # An instant is the first run of a live operator; tangent-free ones have no fixed place.
    backward = np.array([graph.phase[i] is Phase.BACKWARD and graph.live[i] for i in plan.steps], np.bool_)
    if not backward.any():
        return None
    return int(plan.steps[int(np.argmax(np.where(backward, live_bytes, -1)))])


def _allowed(index: StepIndex, early: Iterable[int]) -> list[int]:
    """Those of `early` that may run in the forward: their results may be saved, and their inputs are made there."""
    found: set[int] = set()
    for i in early:
        # Ascending numbers, so makers are decided before their readers.
        makers = [index.producer[s] for s in index.reads[i]]
        there = all(m in found or index.phase[m] is Phase.FORWARD for m in makers)
        if there and not any(index.unsavable[s] for s in index.writes[i]):
            found.add(i)
    return sorted(found)


def _with_early(index: StepIndex, order: Order, early: list[int]) -> Order:
    """`order` with `early` in the forward, each once its inputs are made; without inputs, before its first reader."""
    place = {i: k for k, i in enumerate(order.forward)}
    chosen = set(early)
    for i in early:
        place[i] = max((place[index.producer[s]] for s in index.reads[i]), default=-1)
    first_reader: dict[int, int] = {}
    for i in reversed(early):
        # An operator without inputs could run at any time: early, it would hold its result for nothing.
        if not index.reads[i]:
            place[i] = first_reader.get(i, -1)
        for s in index.reads[i]:
            maker = index.producer[s]
            first_reader[maker] = min(first_reader.get(maker, place[i]), place[i])
    # At equal places the forward operator first, then those placed after it, makers before readers by number.
    forward = sorted([*order.forward, *early], key=lambda i: (place[i], i in chosen, i))
    return Order(tuple(forward), tuple(i for i in order.backward if i not in chosen))
