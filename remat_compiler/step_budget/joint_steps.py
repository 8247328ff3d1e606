"""The steps that a change of a graph affects: one step, and the known steps that share graphs with it.

Graphs are numbered over all of these steps together, so that one peak covers them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.gradients_before import before_calls
from remat_compiler.step_model.events import Call, CallKey, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.step import Step


class JointSteps:
    """A complete step with the known steps that run graphs of it.

    Args:
        step: The complete step.

    Attributes:
        steps: The complete step, then the others.
        graphs: All their graphs.
        options: The user's options for the first graph of the complete step.
        calls: Calls of the complete step, by the graph numbers used here.
        turns: Its turns.
        seen: What was seen at them.
        runs: For each graph, how often all the steps together call it.
        runs_of_steps: For each step, how often it calls each graph.
        aside_bytes: Bytes that open calls of earlier steps hold.
        gradient_bytes: Bytes of gradients from before a step, which are alive during all of it.
        freed: Whether graphs are planned beside more of them.
    """

    def __init__(self, step: Step[CompiledGraph]) -> None:
        self.step = step
        self.steps, self.graphs = _connected(step)
        self.options = step.graphs[0].options
        self._calls = [self._renumbered(one) for one in self.steps]
        graphs = range(len(self.graphs))
        self.runs_of_steps = [[sum(call.graph == i for call in calls) for i in graphs] for calls in self._calls]
        self.runs: list[int] = [sum(runs) for runs in zip(*self.runs_of_steps)]
        # A call that was dropped in this step may have a backward in the next of its kind: without its turn it counts
        # as one whose backward is still to come, at the end.
        self._turns = [[event for event in one.turns if event.turn is not Turn.DROPPED] for one in self.steps]
        self.calls, self.turns = self._calls[0], self._turns[0]
        self._seen = [one.seen for one in self.steps]
        self.seen = step.seen
        before = [graph.gradients for graph in self.graphs if graph.gradients is not None]
        found = {key: size for one in before for of in one.found.values() for key, size in of.items()}
        self.gradient_bytes = sum(found.values())
        self.freed = any(one.planned_bytes > self.gradient_bytes for one in before)
        self._before = [before_calls(self._parameters(one), found) for one in self.steps]
        # What the limit of each step is below the largest.
        self._below = [0] * len(self.steps)
        self.aside_bytes = sum(held.memory.held_bytes for held in step.aside if held.memory is not None)

    def _renumbered(self, step: Step[CompiledGraph]) -> list[Call]:
        """The calls of a step, by the graph numbers used here."""
        numbers = {graph: i for i, graph in enumerate(self.graphs)}
        return [replace(call, graph=numbers[step.graphs[call.graph]]) for call in step.calls]

    def _parameters(self, step: Step[CompiledGraph]) -> dict[CallKey, frozenset[int]]:
        """The identities of parameters in a step, by the graph numbers used here."""
        numbers = {graph: i for i, graph in enumerate(self.graphs)}
        return {(numbers[step.graphs[graph]], of): parameters for (graph, of), parameters in step.parameters.items()}

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        """Peak of all the steps with the gradients from before them.

        The difference between a step's own limit and the largest counts as taken.
        """
        return max(peak + below for peak, below in zip(self._peaks(memories), self._below))

    def _peaks(self, memories: Sequence[GraphMemory]) -> list[int]:
        """Peak of each of the steps with the gradients from before it."""
        kinds = zip(self._calls, self._turns, self._seen, self._before)
        return [
            whole_step_peak(memories, calls, turns, seen, before) + self.gradient_bytes - before.size_bytes
            for calls, turns, seen, before in kinds
        ]

    @property
    def sharded_bytes(self) -> int:
        """Most bytes that sharded modules hold while a graph of the complete step runs."""
        return max((one.during_bytes for one in self.seen.sharded.values()), default=0)

    def peak_of(self, attempts: Sequence[Attempt | None]) -> int | None:
        """Peak with these compilations, by their dry runs; `None` if one of them is not known.

        Args:
            attempts: For each graph its compilation, `None` to keep the present one.
        """
        pairs = zip(self.graphs, attempts)
        memories = [
            graph.memory if attempt is None or attempt is graph.attempt else attempt.check.memory
            for graph, attempt in pairs
        ]
        # A sum without one of them would look like a peak that fits.
        known = [memory for memory in memories if memory is not None]
        return self.peak(known) if len(known) == len(memories) else None

    @property
    def more_bytes(self) -> int:
        """Bytes by which the limit of the complete step is below the largest; valid after `limit_bytes`."""
        return self._below[0]

    def limit_bytes(self) -> int | None:
        """The largest limit of the steps in bytes; `None` for no limit."""
        budget = self.options.memory_budget
        if budget.part is None:
            return None if budget.minimises else self.step.graphs[0].budget_bytes
        unbudgeted = [memory for graph in self.graphs if (memory := graph.plans.without_budget(graph)) is not None]
        if len(unbudgeted) < len(self.graphs):
            return None
        # A fraction gives each step a limit of its own.  One limit serves all if the difference counts as taken.
        # Without a budget, too, the gradients from before a step are there.
        limits = [budget.of_reference(peak) or 0 for peak in self._peaks(unbudgeted)]
        most = max(limits)
        self._below = [most - one for one in limits]
        return most


def _connected(
    step: Step[CompiledGraph],
) -> tuple[list[Step[CompiledGraph]], list[CompiledGraph]]:
    """A step with the known steps that share graphs with it, directly or through others, and all their graphs."""
    steps, graphs = [step], list(step.graphs)
    # The list grows while it is walked, so that steps of graphs found later are found, too.
    for graph in graphs:
        for other in graph.steps:
            if other not in steps:
                steps.append(other)
                graphs += [one for one in other.graphs if one not in graphs]
    return steps, graphs
