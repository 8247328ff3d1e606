"""Share one budget among the graphs of a step: a plan for each graph, so that together they stay within it.

Every graph is planned at several levels, from its least memory up to saving everything.  Since other graphs run between
its forward and its backward, the bytes that it holds there count as much as its peak.  Beginning with all graphs at the
top, one graph at a time goes a level down: the one that takes most bytes off the step's peak for the time that it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    problem: RematProblem,
    unbudgeted: GraphMemory,
    plan_with: Callable[[RematProblem], PlanResult],
    *,
    extremes: bool = False,
) -> tuple[PlanLevel, ...]:
    """The levels of a graph, the least memory first; the last one recomputes nothing.

    From level to level, both the peak and the bytes held between forward and backward grow from their smallest to those
    without a budget.

    Args:
        problem: The graph and its costs; its budget is ignored.
        unbudgeted: Its memory without a budget.
        plan_with: The planner.
        extremes: Whether two levels come first: the least held bytes at any peak, and the least peak at any held bytes.
    """
    top = PlanLevel(unbudgeted.peak_bytes, 0, unbudgeted, 0)
    least_peak = planned_level(problem, NO_BYTES, 0, plan_with)
    # With all of the peak to be left free in between, what is held is all that counts.
    least_held = planned_level(problem, NO_BYTES, unbudgeted.peak_bytes, plan_with)
    if least_peak is None or least_held is None:
        return (top,)
    peak_bytes, held_bytes = least_peak.memory.peak_bytes, least_held.memory.held_bytes
    found = [top]
    for fraction in reversed(LEVELS):
        budget = peak_bytes + int(fraction * max(unbudgeted.peak_bytes - peak_bytes, 0))
        held = held_bytes + int(fraction * max(unbudgeted.held_bytes - held_bytes, 0))
        level = planned_level(problem, budget, max(budget - held, 0), plan_with)
        # `share` needs levels that take more time the lower they are.
        if level is not None and level.added_ns > found[0].added_ns:
            found.insert(0, level)
    return (least_held, least_peak, *found) if extremes else tuple(found)


def planned_level(
    problem: RematProblem, budget_bytes: int, between_bytes: int, plan_with: Callable[[RematProblem], PlanResult]
) -> PlanLevel | None:
    """The level of one budget, of which some bytes are free between forward and backward.

    If nothing fits it, the level of the smallest peak found.
    """
    result = planned_around(replace(problem, budget_bytes=budget_bytes), between_bytes, plan_with)
    if result.plan is None:
        return None
    timeline = simulate(problem.graph, problem.costs, result.plan)
    memory = memory_of(problem.graph, timeline, result.plan)
    return PlanLevel(budget_bytes, between_bytes, memory, timeline.added_ns, problem.offload_bytes)


def share(
    levels: Sequence[Sequence[PlanLevel]],
    runs: Sequence[int],
    peak_of: Callable[[Sequence[GraphMemory]], int],
    limit_bytes: int,
) -> tuple[PlanLevel, ...] | None:
    """A level for each graph with which the step stays within the limit; `None` if it exceeds that at the lowest.

    Args:
        levels: The levels of each graph, the least memory first.
        runs: How often the step runs each graph.
        peak_of: The step's peak, from the memory of each graph.
        limit_bytes: Most bytes that the step may take.
    """
    at = [len(of_graph) - 1 for of_graph in levels]

    def peak() -> int:
        return peak_of([of_graph[i].memory for of_graph, i in zip(levels, at)])

    now = peak()
    # Greedy: bytes saved for each nanosecond added (`+ 1` for levels that add none), the first graph among equals.  A
    # move that saves nothing is made, too, if there is no better one: several graphs may have to go down together.
    while now > limit_bytes:
        tries = []
        for graph, of_graph in enumerate(levels):
            if at[graph]:
                added_ns = runs[graph] * (of_graph[at[graph] - 1].added_ns - of_graph[at[graph]].added_ns)
                at[graph] -= 1
                tries.append((-(now - peak()) / (max(added_ns, 0) + 1), graph))
                at[graph] += 1
        if not tries:
            return None
        at[min(tries)[1]] -= 1
        now = peak()
    _raise_what_fits(levels, at, lambda: peak() <= limit_bytes)
    return tuple(of_graph[i] for of_graph, i in zip(levels, at))


def _raise_what_fits(levels: Sequence[Sequence[PlanLevel]], at: list[int], fits: Callable[[], bool]) -> None:
    """Undo the moves that later ones made needless, first for the graphs that add most time."""
    for graph in sorted(range(len(at)), key=lambda graph: (-levels[graph][at[graph]].added_ns, graph)):
        while at[graph] + 1 < len(levels[graph]):
            at[graph] += 1
            if not fits():
                at[graph] -= 1
                break


def smallest(
    levels: Sequence[Sequence[PlanLevel]], runs: Sequence[int], peak_of: Callable[[Sequence[GraphMemory]], int]
) -> tuple[PlanLevel, ...]:
    """A level for each graph with the least peak of the step that is found; among equal peaks, the least added time.

    The bytes that one graph holds count while the others run, so the least peaks of all graphs need not make up the
    least peak of the step.

    Args:
        levels: The levels of each graph.
        runs: How often the step runs each graph.
        peak_of: The step's peak, from the memory of each graph.
    """

    def rank(at: Sequence[int]) -> tuple[int, int]:
        chosen = [of_graph[i] for of_graph, i in zip(levels, at)]
        return peak_of([level.memory for level in chosen]), sum(n * level.added_ns for n, level in zip(runs, chosen))

    # All combinations are too many: from the best of those with all graphs at the same level, one graph at a time
    # moves to any other level that is better, until none is.  Every move lowers the rank, so this ends.
    starts = [[min(k, len(of_graph) - 1) for of_graph in levels] for k in range(max(map(len, levels)))]
    at = min(starts, key=rank)
    best = rank(at)
    improved = True
    while improved:
        improved = False
        for graph, of_graph in enumerate(levels):
            for i in range(len(of_graph)):
                tried = [*at[:graph], i, *at[graph + 1 :]]
                if rank(tried) < best:
                    at, best, improved = tried, rank(tried), True
    return tuple(of_graph[i] for of_graph, i in zip(levels, at))
