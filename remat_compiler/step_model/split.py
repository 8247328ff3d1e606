"""Split one budget among the graphs of a step: a level for each, so that together they stay within it.

Since other graphs run between the forward of a graph and its backward, the bytes that it holds there count as much as
its peak.  Beginning with all graphs at the top, one graph at a time goes a level down: the one that takes most bytes
off the step's peak for the time that it adds.

Two neighbouring levels may be far apart in bytes, above all for a graph that a step runs once for each of many layers.
So what is left free is used by plans between the chosen level and the next higher one, found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.levels import PlanLevel

T = TypeVar("T")
HALVINGS = 4
"""Plans to try for one graph, each half-way between one that fits and one that does not."""
MOST_PLANS = 32
"""Plans to try for all graphs together."""


@dataclass(frozen=True, slots=True)
class Split:
    """What the graphs of a step may be planned at.

    Attributes:
        levels: The levels of each graph, the least memory first.
        runs: How often the step runs each graph.
        peak_of: The step's peak in bytes, from the memory of each graph.
    """

    levels: Sequence[Sequence[PlanLevel]]
    runs: Sequence[int]
    peak_of: Callable[[Sequence[GraphMemory]], int]

    def within(self, limit_bytes: int) -> tuple[PlanLevel, ...] | None:
        """A level for each graph with which the step fits; `None` if it exceeds the limit at the lowest."""
        at = [len(of_graph) - 1 for of_graph in self.levels]
        # Greedy: bytes saved for each nanosecond added (`+ 1` for levels that add none), the first graph among equals.
        # A move that saves nothing is made, too, if no other is better: several graphs may have to go down together.
        while (now := self._peak(at)) > limit_bytes:
            tries = []
            for graph, i in enumerate(at):
                if i:
                    lower, level = self.levels[graph][i - 1 : i + 1]
                    added_ns = self.runs[graph] * (lower.added_ns - level.added_ns)
                    tries.append(((self._peak(_moved(at, graph, i - 1)) - now) / (max(added_ns, 0) + 1), graph))
            if not tries:
                return None
            at[min(tries)[1]] -= 1
        # Undo the moves that later ones made needless, first for the graphs that add most time.
        for graph in sorted(range(len(at)), key=lambda graph: (-self.levels[graph][at[graph]].added_ns, graph)):
            for i in range(at[graph] + 1, len(self.levels[graph])):
                if self._peak(_moved(at, graph, i)) > limit_bytes:
                    break
                at[graph] = i
        return self._levels_at(at)

    def smallest(self) -> tuple[PlanLevel, ...]:
        """A level for each graph with the least peak of the step that is found; among equal peaks, the least time.

        The bytes that one graph holds count while the others run, so the least peaks of all graphs need not make up the
        least peak of the step.
        """

        def rank(at: Sequence[int]) -> tuple[int, int]:
            return self._peak(at), sum(n * level.added_ns for n, level in zip(self.runs, self._levels_at(at)))

        # All combinations are too many: from the best of those with all graphs at the same level, one graph at a time
        # moves to any other level that is better, until none is.  Every move lowers the rank, so this ends.
        starts = [[min(k, len(of_graph) - 1) for of_graph in self.levels] for k in range(max(map(len, self.levels)))]
        before, at = None, min(starts, key=rank)
        while at != before:
            before = at
            for graph, of_graph in enumerate(self.levels):
                # The present one is among the tries, and comes first among equals.
                at = min([at, *(_moved(at, graph, i) for i in range(len(of_graph)))], key=rank)
        return self._levels_at(at)

    def finer(
        self, chosen: Sequence[PlanLevel], limit_bytes: int, plans: Sequence[Callable[[int, int], PlanLevel | None]]
    ) -> tuple[PlanLevel, ...]:
        """A level for each graph that adds no more time than the chosen one, and with which the step fits as well.

        Args:
            chosen: The level of each graph, with which the step fits.
            limit_bytes: Most bytes that the step may take.
            plans: Each plans one graph within a budget, of which some bytes are free in between.
        """
        now, left = list(chosen), MOST_PLANS
        # First where most is to be gained; the first graph among equals.
        for graph in sorted(range(len(now)), key=lambda i: (-self.runs[i] * now[i].added_ns, i)):
            above = self.levels[graph][self.levels[graph].index(now[graph]) + 1 :]
            if not above or not now[graph].added_ns:
                continue
            low, high = _limits(now[graph]), _limits(above[0])
            for _ in range(min(HALVINGS, left)):
                left -= 1
                budget_bytes, held_bytes = middle = ((low[0] + high[0]) // 2, (low[1] + high[1]) // 2)
                tried = plans[graph](budget_bytes, max(budget_bytes - held_bytes, 0))
                if tried is None or self.peak_of([one.memory for one in _moved(now, graph, tried)]) > limit_bytes:
                    high = middle
                    continue
                low = middle
                if tried.added_ns < now[graph].added_ns:
                    now[graph] = tried
        return tuple(now)

    def _levels_at(self, at: Sequence[int]) -> tuple[PlanLevel, ...]:
        return tuple(of_graph[i] for of_graph, i in zip(self.levels, at))

    def _peak(self, at: Sequence[int]) -> int:
        return self.peak_of([level.memory for level in self._levels_at(at)])


def _moved(at: Sequence[T], graph: int, to: T) -> list[T]:
    """`at` with another entry for one graph."""
    return [*at[:graph], to, *at[graph + 1 :]]


def _limits(level: PlanLevel) -> tuple[int, int]:
    """The budget that a level was planned for, and what it may hold between forward and backward."""
    # The level without a budget leaves nothing free in between, though it holds less than its peak.
    return level.budget_bytes, min(level.budget_bytes - level.between_bytes, level.memory.held_bytes)
