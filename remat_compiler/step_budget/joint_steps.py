"""The steps that a change of a graph would change: one step, and those that share graphs with it.

Graphs are numbered over all of these steps together, so that one peak can be told of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.options import BudgetKind
from remat_compiler.simulate.step_peak import Call, GraphMemory, Turn, whole_step_peak
from remat_compiler.step_budget.compiled_graph import PlannedGraph
from remat_compiler.step_budget.graph_levels import checked_without_budget
from remat_compiler.step_budget.step_watch import WatchedStep


class JointSteps:
    """A complete step with the known steps that run graphs of it.

    Args:
        step: The complete step.

    Attributes:
        steps: It, and the others.
        graphs: All their graphs.
        options: The user's options, of its first graph.
        calls: Its calls, by the numbers that graphs have here.
        turns: What happened in it.
        runs: How often all the steps call each graph.
        aside_bytes: Bytes of outputs of earlier steps that are still held.
    """

    def __init__(self, step: WatchedStep[PlannedGraph]) -> None:
        self.step = step
        self.steps, self.graphs = _connected(step)
        self.options = step.graphs[0].options
        self._calls = [self._renumbered(one) for one in self.steps]
        self.runs = [sum(call.graph == i for calls in self._calls for call in calls) for i in range(len(self.graphs))]
        # A call that was let go in a step may have a backward in another: at the end, as if it were still to come.
        self._turns = [[(turn, call) for turn, call in one.turns if turn is not Turn.DROPPED] for one in self.steps]
        self.calls, self.turns = self._calls[0], self._turns[0]
        self._more = [0] * len(self.steps)
        kept: list[GraphMemory] = [memory for _, memory in step.aside if memory is not None]
        self.aside_bytes = sum(memory.held_bytes for memory in kept)

    def _renumbered(self, step: WatchedStep[PlannedGraph]) -> list[Call]:
        """The calls of a step, by the numbers that graphs have here."""
        numbers = {graph: i for i, graph in enumerate(self.graphs)}
        return [replace(call, graph=numbers[step.graphs[call.graph]]) for call in step.calls]

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        """Peak of the steps; what one of them may take less than the others counts as taken."""
        kinds = zip(self._calls, self._turns, self._more)
        return max(whole_step_peak(memories, calls, turns) + more for calls, turns, more in kinds)

    def peak_of(self, attempts: Sequence[Attempt | None]) -> int | None:
        """The same of tries, as checked: `None` for a graph that stays as it is; `None` where one is not known."""
        pairs = zip(self.graphs, attempts)
        memories = [
            graph.memory if attempt is None or attempt is graph.attempt else attempt.check.memory
            for graph, attempt in pairs
        ]
        known = [memory for memory in memories if memory is not None]
        return self.peak(known) if len(known) == len(memories) else None

    @property
    def more_bytes(self) -> int:
        """What the step may take less than the largest of them, once `limit_bytes` was asked for."""
        return self._more[0]

    def limit_bytes(self) -> int | None:
        """Bytes that the steps may take; `None` for no limit."""
        budget = self.options.memory_budget
        if budget.kind is not BudgetKind.FRACTION:
            return None if budget.kind is BudgetKind.MIN else self.step.graphs[0].budget_bytes
        unbudgeted = [memory for graph in self.graphs if (memory := checked_without_budget(graph)) is not None]
        if len(unbudgeted) < len(self.graphs):
            return None
        peaks = [whole_step_peak(unbudgeted, calls, turns) for calls, turns in zip(self._calls, self._turns)]
        limits = [budget.of_reference(peak) or 0 for peak in peaks]
        most = max(limits)
        self._more = [most - one for one in limits]
        return most


def _connected(
    step: WatchedStep[PlannedGraph],
) -> tuple[list[WatchedStep[PlannedGraph]], list[PlannedGraph]]:
    """A step, the known steps that a change of its graphs would change, too, and all their graphs."""
    steps, graphs = [step], list(step.graphs)
    for graph in graphs:
        for other in graph.steps:
            if other not in steps:
                steps.append(other)
                graphs += [one for one in other.graphs if one not in graphs]
    return steps, graphs
