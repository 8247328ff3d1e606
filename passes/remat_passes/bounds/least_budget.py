"""The smallest budget that any plan of a class can keep, as far as it is proven: the floor of its peak.

    operator    what one operator needs at once (`remat_compiler.simulate.floor`), in any class
    instant     the fewest bytes that can be alive when an operator first runs: a cut of its network in which bytes
                alone count (`remat_passes.bounds.network`).  What may not be repeated and is read later has to be
                there, and in the graph's own order, what came before in it
    linked      where plans may add only so much time, several instants together: the program of `windows` with the
                budget as the variable that is minimised, and the added time as a row.  One linear program, no bisection

Each of them bounds all plans of the class, so the largest does.  A class of more plans has a lower floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.floor import peak_floor
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.linked import FINER, SAFETY, chain_of
from remat_passes.bounds.lower_bound import QUICK, BoundEffort
from remat_passes.bounds.network import network_of
from remat_passes.bounds.pricing import Profile
from remat_passes.bounds.rows import MEGABYTE
from remat_passes.bounds.solved import solve_relaxation
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.bounds.windows import Windows

INSTANTS = 500
"""Instants of which the fewest bytes are found, at most."""


@dataclass(frozen=True, slots=True)
class LeastBudget:
    """Bytes below which no plan of a class peaks.

    Attributes:
        peak_bytes: The bytes.
        op: The operator that needs them, or `None` if several instants together do, or what is kept at the end.
        how: The proof, in a few words.
        order: Plans for which it holds.
    """

    peak_bytes: int
    op: OpId | None
    how: str
    order: OrderClass


def least_budget(problem: RematProblem, order: OrderClass = OrderClass.ANY, effort: BoundEffort = QUICK) -> LeastBudget:
    """The floor of all plans of `order` that add no more than `max_added_ns` of the problem.

    Args:
        problem: The problem; its budget does not matter.
        order: The class of plans.
        effort: How many instants are linked, and on which graphs.
    """
    floor = peak_floor(problem.graph, problem.costs)
    best = LeastBudget(floor.peak_bytes, floor.op, "one operator", order)
    graph = StepGraph.of(problem)
    ops = [op for op, live in enumerate(graph.live) if live and graph.phase[op] is not Phase.TANGENT_FREE]
    # Cuts of all instants of a large graph would take seconds; those that hold most in any case come first.
    for instant in sorted((Instant.of(graph, op, order) for op in ops), key=lambda one: -one.held_bytes)[:INSTANTS]:
        least = instant.held_bytes + network_of(graph, instant).cheapest(0, 1).point.size_bytes
        if least > best.peak_bytes:
            best = LeastBudget(least, OpId(instant.op), "one instant", order)
    if problem.max_added_ns is not None and len(graph.live) <= effort.linked_operators and effort.linked > 1:
        best = max(best, _linked(problem, graph, order, effort, best.peak_bytes), key=lambda one: one.peak_bytes)
    if problem.moves:
        # A plan without its transfers peaks higher by at most what was off the device.
        return replace(best, peak_bytes=max(0, best.peak_bytes - problem.offload_bytes))
    return best


def _linked(
    problem: RematProblem, graph: StepGraph, order: OrderClass, effort: BoundEffort, known_bytes: int
) -> LeastBudget:
    """The floor of linked instants of plans within the time."""
    # Instants that are over what is known already, even where everything is saved.
    profile = Profile(replace(problem, budget_bytes=known_bytes), graph)
    candidates = [*profile.parts(effort.linked), *profile.parts(FINER * effort.linked)]
    instants = chain_of(graph, order, candidates, effort.linked)
    found = -math.inf
    if instants:
        found = solve_relaxation(Windows(graph, instants, None, problem.max_added_ns).rows).bound
    # Arithmetic may have put it above the true one: give up a share, and one byte.
    least = math.ceil(found * MEGABYTE * (1 - SAFETY) - 1) if math.isfinite(found) else 0
    return LeastBudget(max(0, least), None, f"{len(instants)} instants linked, within the time", order)
