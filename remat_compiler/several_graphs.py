"""One budget for all graphs of a step: where Dynamo breaks the graph, or several compiled modules stand in a row.

Nothing is known of later graphs when the first one is compiled.  So a graph at whose end the step goes on gets a part
of the budget at first, and graphs behind it what is left.  Once a step is complete, its graphs and their
order are known: where together they exceed the budget, or could do with less recomputation, the budget is shared among
them anew and they are compiled again, before the next step.

    first step    A: a quarter │ B: what A leaves        compiled one by one, as Dynamo comes to them
    next step     A and B planned together               compiled under what Dynamo knew of them, then kept

A graph that was taken to be alone, and is not, may exceed the budget together with the others in the first step.

Where sizes change, graphs get limits of their own for all sizes, see `size_shares`; then the first step keeps to the
budget, too, or is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from remat_compiler.errors import BudgetFacts, InfeasibleBudget
from remat_compiler.options import BudgetKind, format_bytes
from remat_compiler.planned_graph import PlannedGraph, have_one_budget, open_beside
from remat_compiler.runtime.allowance import Allowance
from remat_compiler.runtime.step_watch import WatchedStep
from remat_compiler.search import Attempt
from remat_compiler.shares import Level, levels_of, share
from remat_compiler.simulate.whole_step import GraphMemory, Passed, Turn, handed_on, whole_step_peak
from remat_compiler.size_shares import Division, Member, SharedSizes, SizeShares
from remat_passes.registry import make_planner

logger = logging.getLogger(__name__)

WORTH_IT = 0.02
"""Fraction of the step by which recomputation must shrink for graphs that fit to be compiled again."""
MAX_ROUNDS = 4
"""How often the budget is shared at most until what is emitted fits together."""
LEVEL_EFFORT = 2_000
"""Work for each of the plans that only tell how to share, see `remat_passes.planning.auto.Auto`."""
_LIMITED = (BudgetKind.BYTES, BudgetKind.FRACTION)
GRAPH_BREAKS = 'TORCH_LOGS="graph_breaks" shows where the step is cut'


def decide(step: WatchedStep[PlannedGraph]) -> None:
    """Keep the graphs of a complete step as they are, or share the budget among them and compile them again.

    Raises:
        InfeasibleBudget: They do not fit together, and the options do not say to take the smallest peak.
    """
    try:
        if len(step.calls) > 1:
            _Together(step).decide()
        elif step.graphs[0].has_part:
            _decide_alone(step.graphs[0])
    finally:
        for graph in step.graphs:
            graph.shares = len(step.calls) > 1
            graph.settle()


def _decide_alone(graph: PlannedGraph) -> None:
    """A graph that got a part of the budget gets all of it."""
    own_budget = graph.budget_bytes
    if graph.changing is not None:
        assert own_budget is not None, "only a budget in bytes holds for all sizes"
        graph.changing.take_all(own_budget)
        graph.keep(own_budget)
        return
    assert graph.recipe is not None
    if graph.added_ns and own_budget is not None:
        with graph.recipe.context():
            attempt, own_budget = graph.recipe.search()
        graph.exchange(attempt)
    graph.keep(own_budget)


class _Together:
    """The graphs of one step."""

    def __init__(self, step: WatchedStep[PlannedGraph]) -> None:
        self.step = step
        self.graphs = step.graphs
        self.runs = [sum(call.graph == i for call in step.calls) for i in range(len(step.graphs))]
        self.options = step.graphs[0].options
        # A call that was let go in this step may have a backward in another: at the end, as if it were still to come.
        self.turns = [(turn, call) for turn, call in step.turns if turn is not Turn.DROPPED]

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        """Peak of the step."""
        return whole_step_peak(memories, self.step.calls, self.turns)

    def decide(self) -> None:
        """See `decide`."""
        memories = [graph.memory for graph in self.graphs]
        known = [memory for memory in memories if memory is not None]
        if len(known) < len(memories):
            if any(graph.options.memory_budget.kind in _LIMITED for graph in self.graphs):
                self._warn("together they take more than each alone", "what one of them takes is not known")
            return
        peak, limit = self.peak(known), self._limit()
        change = any(graph.changing is not None for graph in self.graphs)
        if not all(have_one_budget(graph.options, self.options) for graph in self.graphs):
            limit = min((g.budget_bytes for g in self.graphs if g.budget_bytes is not None), default=None)
            if limit is not None and (peak > limit or change):
                self._warn(f"together they peak at {format_bytes(peak)}", "their options differ")
                return
        if limit is not None and change:
            self._share_sizes(limit)
            return
        if limit is None or (peak <= limit and not any(graph.has_part for graph in self.graphs)):
            self._keep_all(peak, limit)
            return
        fixed = [graph for graph in self.graphs if graph.recipe is None]
        if peak > limit and len(fixed) == len(self.graphs):
            self._warn(
                f"together they peak at {format_bytes(peak)}, over {format_bytes(limit)}",
                "they cannot be compiled again, since their sizes change or Dynamo is not at hand",
            )
            return
        self._share(peak, limit)

    def _share_sizes(self, limit: int) -> None:
        """Limits for the graphs whose sizes change; the others are compiled again for what is left to them."""
        for graph in self.graphs:
            graph.plan_again()
        changing = [graph.changing for graph in self.graphs]
        passed = handed_on(self.step.calls, self.turns)
        members = [_member(graph, passed[i]) for i, graph in enumerate(self.graphs)]
        shares, division = self._division(members, limit)
        for i, graph in enumerate(self.graphs):
            if graph.changing is None:
                attempt = _compiled(graph, division.levels[i], real=True)
                if attempt is not None and attempt is not graph.attempt:
                    graph.exchange(attempt)
                memory = graph.memory
                if memory is not None:
                    members[i] = Member((_passing(replace(division.levels[i], memory=memory), passed[i]),))
        if any(graph.changing is None for graph in self.graphs):
            shares, division = self._division(members, limit)
        shared = SharedSizes(shares, changing, self.step.calls[0].graph, lambda: not open_beside(self.options))
        shared.apply(division)
        note = f"the step runs {len(self.graphs)} planned graphs, which share the budget of {format_bytes(limit)}"
        for graph, allowance in zip(self.graphs, division.allowances):
            fixed = graph.memory if graph.changing is None else None
            graph.keep(allowance.limit_bytes if fixed is None else fixed.peak_bytes, f"{note} at all sizes")

    def _division(self, members: Sequence[Member], limit: int) -> tuple[SizeShares, Division]:
        """The budget shared out; where nothing fits, more than the budget, where the options allow that.

        Where the first sizes do not fit, it is shared for the largest that do: the others are refused when they come.
        """
        shares = SizeShares(members, self.step.calls, self.turns, limit)
        division = shares.divide(needed=0)
        if division is None and shares.most is not None and self.options.on_infeasible != "min":
            division = shares.divide(shares.most)
        if division is not None:
            return shares, division
        least = shares.least_peak()
        if self.options.on_infeasible != "min":
            for graph in self.graphs:
                if graph.changing is not None:
                    graph.changing.share(Allowance.whole(0), self)
            self._refuse(limit, least)
        self._warn_of_smallest(limit, least)
        shares = SizeShares(members, self.step.calls, self.turns, least)
        division = shares.divide(needed=0)
        assert division is not None, "the smallest peak is within itself"
        return shares, division

    def _share(self, peak: int, limit: int) -> None:
        """Compile again under a shared budget, where that is needed or worth it."""
        for graph in self.graphs:
            graph.plan_again()
        levels = [_levels(graph) for graph in self.graphs]
        target = limit
        for _ in range(MAX_ROUNDS):
            found = share(levels, self.runs, self.peak, target)
            if found is None:
                break
            if peak <= limit and not self._worth_it(found):
                self._keep_all(peak, limit)
                return
            chosen = [_compiled(graph, level, real=False) for graph, level in zip(self.graphs, found)]
            together = self._peak_of(chosen)
            if together is None or together <= limit:
                self._exchange(chosen, found, together, limit)
                return
            target -= together - limit
        if peak <= limit:
            self._keep_all(peak, limit)
            return
        self._take_smallest(levels, limit)

    def _take_smallest(self, levels: Sequence[Sequence[Level]], limit: int) -> None:
        """The smallest peak with a warning, where the options allow that; else the error."""
        lowest = [of_graph[0] for of_graph in levels]
        attempts = [_compiled(graph, level, real=False) for graph, level in zip(self.graphs, lowest)]
        together = self._peak_of(attempts) or self.peak([level.memory for level in lowest])
        if together > limit:
            if self.options.on_infeasible != "min":
                self._refuse(limit, together)
            self._warn_of_smallest(limit, together)
        self._exchange(attempts, lowest, together, limit)

    def _refuse(self, limit: int, smallest: int) -> NoReturn:
        slowest = self.options.max_slowdown
        reason = "" if slowest is None else f"max_slowdown={slowest}, "
        reason += f"{len(self.graphs)} graphs of the step together"
        facts = BudgetFacts(asked=self.options.memory_budget.asked, planner=self.options.planner)
        raise InfeasibleBudget(limit, smallest, reason=reason, facts=facts)

    def _warn_of_smallest(self, limit: int, smallest: int) -> None:
        logger.warning(
            "no plan fits memory_budget=%d bytes: the %d graphs of the step together peak at %s; training goes on",
            limit,
            len(self.graphs),
            format_bytes(smallest),
        )

    def _peak_of(self, attempts: Sequence[Attempt | None]) -> int | None:
        pairs = zip(self.graphs, attempts)
        memories = [graph.memory if attempt is None else attempt.check.memory for graph, attempt in pairs]
        known = [memory for memory in memories if memory is not None]
        return self.peak(known) if len(known) == len(memories) else None

    def _worth_it(self, found: Sequence[Level]) -> bool:
        """Whether the graphs would recompute less by more than a little, or nothing any more."""
        now_ns = sum(n * graph.added_ns for n, graph in zip(self.runs, self.graphs))
        then_ns = sum(n * level.added_ns for n, level in zip(self.runs, found))
        partitions = [(n, graph.partition) for n, graph in zip(self.runs, self.graphs)]
        step_ns = sum(n * one.cut.problem.costs.step_ns for n, one in partitions if one is not None)
        return now_ns - then_ns > WORTH_IT * step_ns or (now_ns > 0 and then_ns == 0)

    def _exchange(
        self, attempts: Sequence[Attempt | None], levels: Sequence[Level], peak: int | None, limit: int
    ) -> None:
        note = self._note(peak, limit)
        for graph, attempt, level in zip(self.graphs, attempts, levels):
            final = attempt if attempt is None or attempt.real else _compiled(graph, level, real=True)
            if final is not None and final is not graph.attempt:
                graph.exchange(final)
            own = graph.memory
            graph.keep(max(level.budget_bytes, level.memory.peak_bytes, 0 if own is None else own.peak_bytes), note)

    def _keep_all(self, peak: int, limit: int | None) -> None:
        for graph in self.graphs:
            part = graph.attempt if graph.has_part else None
            own = graph.budget_bytes if part is None else part.request.budget_bytes
            graph.keep(own, self._note(peak, limit))

    def _note(self, peak: int | None, limit: int | None) -> str:
        shared = "" if limit is None else f", which share the budget of {format_bytes(limit)}"
        found = "is not known" if peak is None else f"is at most {format_bytes(peak)}"
        return f"the step runs {len(self.graphs)} planned graphs{shared}; their peak together {found}"

    def _limit(self) -> int | None:
        """Bytes that the step may take; `None` for no limit."""
        budget = self.options.memory_budget
        if budget.kind is not BudgetKind.FRACTION:
            return None if budget.kind is BudgetKind.MIN else self.graphs[0].budget_bytes
        unbudgeted = [memory for memory in (graph.unbudgeted for graph in self.graphs) if memory is not None]
        return budget.of_reference(self.peak(unbudgeted)) if len(unbudgeted) == len(self.graphs) else None

    def _warn(self, found: str, why: str) -> None:
        """The budget holds for each graph alone: say so once."""
        logger.warning(
            "the step runs %d planned graphs, and memory_budget was kept for each of them only: %s, but %s; name a "
            "smaller budget, or let the step be one graph (%s)",
            len(self.graphs),
            found,
            why,
            GRAPH_BREAKS,
        )
        for graph in self.graphs:
            if graph.changing is not None and graph.budget_bytes is not None:
                graph.changing.take_all(graph.budget_bytes)
            graph.keep(graph.budget_bytes, f"the budget holds for this graph only: {found}, but {why}")


def _member(graph: PlannedGraph, passed: Sequence[Passed]) -> Member:
    """A graph of a step with sizes that change, and the gradients that it hands on at once."""
    levels = _levels(graph)
    if graph.changing is None:
        return Member(tuple(_passing(level, passed) for level in levels))
    arguments = tuple(one.argument for one in passed)
    return Member(levels, partial(graph.changing.grown, arguments), arguments)


def _passing(level: Level, passed: Sequence[Passed]) -> Level:
    """The level where these gradients count with the graph that they are handed to."""
    left_bytes = max(level.memory.left_bytes - sum(one.size_bytes for one in passed), 0)
    return replace(level, memory=replace(level.memory, left_bytes=left_bytes))


def _levels(graph: PlannedGraph) -> tuple[Level, ...]:
    """The ways to plan a graph; as it is, where it cannot be compiled again."""
    memory, unbudgeted, one = graph.memory, graph.unbudgeted, graph.partition
    assert memory is not None
    if (graph.recipe is None and graph.changing is None) or unbudgeted is None or one is None:
        return (Level(memory.peak_bytes, 0, memory, graph.added_ns),)
    options = graph.options
    planner = make_planner(options.planner, effort=LEVEL_EFFORT, time_limit=0.0)
    return levels_of(one.cut.problem, unbudgeted, planner.plan)


def _compiled(graph: PlannedGraph, level: Level, *, real: bool) -> Attempt | None:
    """The graph at one level; as it is, where it cannot be compiled again or is at that level."""
    if graph.recipe is None or graph.attempt is None:
        return graph.attempt
    request = replace(
        graph.attempt.request,
        budget_bytes=level.budget_bytes,
        between_bytes=level.between_bytes,
        fraction=None,
        take_smallest=True,
    )
    if request == graph.attempt.request:
        return graph.attempt
    with graph.recipe.context():
        return graph.recipe.compile_(request, real=real)
