"""Plans between two levels of a graph, which use bytes that `share` leaves free.

`share` chooses one of a few planned levels for each graph.  Two neighbouring levels may be far apart in bytes, above
all for a graph that a step runs once for each of many layers.  Here budgets between the chosen level and the next
higher one are planned by bisection, as long as the step still fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_compiler.step_budget.share import PlanLevel
from remat_compiler.step_model.graph_memory import GraphMemory

HALVINGS = 4
"""Plans to try for one graph, each half-way between one that fits and one that does not."""
MOST_PLANS = 32
"""Plans to try for all graphs together."""


def finer(
    chosen: Sequence[PlanLevel],
    levels: Sequence[Sequence[PlanLevel]],
    runs: Sequence[int],
    peak_of: Callable[[Sequence[GraphMemory]], int],
    limit_bytes: int,
    plan: Callable[[int, int, int], PlanLevel | None],
) -> tuple[PlanLevel, ...]:
    """A level for each graph that adds no more time than the chosen one, and with which the step fits as well.

    Args:
        chosen: The level of each graph, with which the step fits.
        levels: All levels of each graph, the least memory first.
        runs: How often the step runs each graph.
        peak_of: The step's peak, from the memory of each graph.
        limit_bytes: Most bytes that the step may take.
        plan: Plans a graph, given by its position, within a budget of which some bytes are free in between.
    """
    now, left = list(chosen), MOST_PLANS
    # First where most is to be gained; the first graph among equals.
    for graph in sorted(range(len(now)), key=lambda i: (-runs[i] * now[i].added_ns, i)):
        above = levels[graph][levels[graph].index(now[graph]) + 1 :]
        if not above or not now[graph].added_ns:
            continue
        low, high = now[graph], above[0]
        low_bytes, high_bytes = _limits(low), _limits(high)
        for _ in range(min(HALVINGS, left)):
            left -= 1
            budget_bytes, held_bytes = ((a + b) // 2 for a, b in zip(low_bytes, high_bytes))
            tried = plan(graph, budget_bytes, max(budget_bytes - held_bytes, 0))
            fits = tried is not None and (
                peak_of([(tried if i == graph else one).memory for i, one in enumerate(now)]) <= limit_bytes
            )
            if not fits:
                high_bytes = (budget_bytes, held_bytes)
                continue
            low_bytes = (budget_bytes, held_bytes)
            if tried is not None and tried.added_ns < now[graph].added_ns:
                now[graph] = tried
    return tuple(now)


def _limits(level: PlanLevel) -> tuple[int, int]:
    """The budget that a level was planned for, and what it may hold between forward and backward."""
    # The level without a budget leaves nothing free in between, though it holds less than its peak.
    return level.budget_bytes, min(level.budget_bytes - level.between_bytes, level.memory.held_bytes)
