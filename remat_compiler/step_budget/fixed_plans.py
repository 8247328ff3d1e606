"""A graph that is compiled again for the same sizes, once more is known of the step that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.offloading import with_room
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.graph_plans import GraphPlans, Planned
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.levels import PlanLevel


@dataclass(slots=True, eq=False)
class FixedPlans(GraphPlans):
    """How a graph is compiled again after Dynamo is done with it.

    Attributes:
        search: Compiles the graph within a budget, or by one request.
        alone: The goal of the search if the graph turns out to have the budget for itself.
        dynamo_context: What Dynamo knew of the graph.
        accumulated: Positions of the inputs whose gradients may be added to those from before as they are made.
        pinned: Whether a GPU copies to and from where values are moved to.
    """

    can_change: ClassVar[bool] = True

    search: BudgetSearch
    alone: SearchGoal
    dynamo_context: Callable[[], AbstractContextManager[None]]
    accumulated: tuple[int, ...] = ()
    pinned: bool = False

    @property
    def offload_bytes(self) -> int | None:
        """See `GraphPlans`."""
        return self.alone.request.offload_bytes

    def learnt(self, attempt: Attempt) -> Attempt:
        """See `GraphPlans`; the code stays."""
        # A hit in AOTAutograd's cache would skip the partitioner; of the rest, only code is generated.
        with self.dynamo_context(), torch_compat.partitioner_always_runs():
            again = self.search.compile_(attempt.request, real=False)
        return replace(attempt, partitions=again.partitions)

    def without_budget(self, graph: Planned) -> GraphMemory | None:
        """See `GraphPlans`."""
        if graph.attempt is None:
            return graph.unbudgeted
        if graph.figures is not None and graph.figures.unchanged:
            return graph.memory
        # Emitted once for this, unless the search did so before: the simulator's peak is not exact.
        if graph.native is None:
            with self.dynamo_context():
                attempt = self.search.compile_(graph.attempt.request.without_budget, real=False)
            graph.native = attempt.check.memory
        return graph.unbudgeted if graph.native is None else graph.native

    def compiled_at(self, graph: Planned, level: PlanLevel, *, real: bool) -> Attempt | None:
        """See `GraphPlans`."""
        if graph.attempt is None or level.is_present:
            return graph.attempt
        request = replace(
            graph.attempt.request,
            budget_bytes=level.budget_bytes,
            between_bytes=level.between_bytes,
            fraction=None,
            may_be_native=True,  # at this level's bytes, not at those of the request
            offload_bytes=level.offload_bytes,
            take_smallest=True,  # the extreme levels ask for 1 byte, that is for the smallest peak
        )
        if request == graph.attempt.request:
            return graph.attempt
        with self.dynamo_context():
            return self.search.compile_(request, real=real)

    def with_room(self, attempt: Attempt, runs: int, before: Attempt | None) -> Attempt:
        """See `GraphPlans`."""
        return with_room(attempt, runs, self.pinned, before=None if before is None else before.room)

    def decide_alone(self, graph: Planned) -> None:
        """See `GraphPlans`."""
        assert graph.attempt is not None
        budget_bytes = graph.budget_bytes
        # A fraction is one of the graph's own peak, known to be the step's only here.  Under bytes, a plan that
        # fits and adds nothing in a part of the budget cannot get better with all of it.
        may_be_better = budget_bytes is not None and (graph.added_ns > 0 or graph.attempt.is_over(budget_bytes))
        # Those that add up no more are planned as any other.
        may_be_better |= graph.attempt.request.leaving != self.alone.request.leaving
        if graph.options.memory_budget.part is not None or may_be_better:
            with self.dynamo_context():
                attempt, budget_bytes = self.search.run(self.alone)
            graph.exchange(attempt)
        graph.keep(budget_bytes)

    def have_leave(self, graph: Planned, leaving: tuple[int, ...], hooks_bytes: Mapping[int, int]) -> None:
        """See `GraphPlans`."""
        assert graph.attempt is not None
        takes = tuple(sorted(hooks_bytes.items()))
        request = replace(self.alone.request, leaving=leaving, hooks_bytes=takes)
        self.alone = replace(self.alone, request=request, known=None)
        present = replace(graph.attempt.request, leaving=leaving, hooks_bytes=takes, take_smallest=True)
        with self.dynamo_context():
            graph.exchange(self.search.compile_(present))
        graph.keep(graph.budget_bytes)

    def decide_beside(self, graph: Planned, limit_bytes: int | None, gradient_bytes: int, *, freed: bool) -> None:
        """See `GraphPlans`."""
        present = None if graph.attempt is None else graph.attempt.needed_bytes
        if limit_bytes is None or present is None:
            return
        left_bytes = max(limit_bytes - gradient_bytes, 1)
        if present > left_bytes or freed:
            # Old and new gradients are then alive together for one parameter, not for all.
            request = replace(self.alone.request, budget_bytes=left_bytes, fraction=None)
            if gradient_bytes:
                request = replace(request, leaving=tuple(i for i in self.accumulated if i not in graph.staying))
            with self.dynamo_context():
                attempt, _ = self.search.run(SearchGoal(request, limit_bytes=left_bytes, takes_smallest=True))
            needed = attempt.needed_bytes
            # The smallest peak that was planned may be more than what the present code takes.
            if needed is None or needed < present or needed <= left_bytes:
                graph.exchange(attempt)
                present = present if needed is None else needed
        step = StepFigures(1, present + gradient_bytes, limit_bytes, gradient_bytes=gradient_bytes)
        graph.keep(max(left_bytes, present), "", step)
