"""The levels of a graph: plans from its least memory up to saving everything, of which a step chooses one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_compiler.simulate.interlude import planned_around
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Budgets at which each graph is planned, between its smallest peak (0) and its peak without a budget (1)."""


@dataclass(frozen=True, slots=True)
class PlanLevel:
    """One way to plan a graph.

    Attributes:
        budget_bytes: The budget that the planner gets.
        between_bytes: Bytes of the budget to leave free between forward and backward.
        memory: The memory of the plan, by the simulator.
        added_ns: Time that the plan adds to one run of the graph.
        offload_bytes: Most bytes that one run may move off the device.
        is_present: Whether it is the graph's present compilation.
    """

    budget_bytes: int
    between_bytes: int
    memory: GraphMemory
    added_ns: int
    offload_bytes: int = 0
    is_present: bool = False


def levels_of(
    unbudgeted: GraphMemory, plan: Callable[[int, int], PlanLevel | None], *, extremes: bool = False
) -> tuple[PlanLevel, ...]:
    """The levels of a graph, the least memory first; the last one recomputes nothing.

    From level to level, both the peak and the bytes held between forward and backward grow from their smallest to those
    without a budget, and the added time gets less.

    Args:
        unbudgeted: Its memory without a budget.
        plan: Plans it within a budget, of which some bytes are free between forward and backward.
        extremes: Whether two levels come first: the least held bytes at any peak, and the least peak at any held bytes.
    """
    top = PlanLevel(unbudgeted.peak_bytes, 0, unbudgeted, 0)
    # With all of the peak to be left free in between, what is held is all that counts.
    least_peak, least_held = plan(NO_BYTES, 0), plan(NO_BYTES, unbudgeted.peak_bytes)
    if least_peak is None or least_held is None:
        return (top,)
    peak_bytes, held_bytes = least_peak.memory.peak_bytes, least_held.memory.held_bytes
    found = [top]
    for fraction in reversed(LEVELS):
        budget = peak_bytes + int(fraction * max(unbudgeted.peak_bytes - peak_bytes, 0))
        held = held_bytes + int(fraction * max(unbudgeted.held_bytes - held_bytes, 0))
        level = plan(budget, max(budget - held, 0))
        if level is not None and level.added_ns > found[0].added_ns:
            found.insert(0, level)
    return (least_held, least_peak, *found) if extremes else tuple(found)


def planned_level(
    problem: RematProblem, plan_with: Callable[[RematProblem], PlanResult], budget_bytes: int, between_bytes: int
) -> PlanLevel | None:
    """The level of one budget, of which some bytes are free between forward and backward.

    If nothing fits it, the level of the smallest peak found; `None` without any plan.
    """
    result = planned_around(replace(problem, budget_bytes=budget_bytes), between_bytes, plan_with)
    if result.plan is None:
        return None
    timeline = simulate(problem.graph, problem.costs, result.plan)
    memory = memory_of(problem.graph, timeline, result.plan)
    return PlanLevel(budget_bytes, between_bytes, memory, timeline.added_ns, problem.offload_bytes)
