"""Instants of one step and class of plans, each priced once; and the choice of instants worth pricing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import Phase
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.network import Network, network_of
from remat_passes.bounds.relaxed import Relaxed, relax
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, recompute


@dataclass(slots=True)
class Work:
    """Work done, about nodes of networks visited."""

    done: int = 0


class Pricing:
    """Instants priced so far.

    Attributes:
        graph: The step.
        budget: Bytes.
        order: The class of plans.
        whole: Whether these are all plans of the class, or the part that keeps an order of some operators.
        priced: Result of pricing for each operator as an instant.
        work: Counter to which pricing adds its work.
    """

    def __init__(self, graph: StepGraph, budget: int, order: OrderClass, work: Work, whole: bool = True) -> None:
        self.graph, self.budget, self.order, self.work, self.whole = graph, budget, order, work, whole
        self.priced: dict[int, Relaxed] = {}

    def ordered(self, first: int, then: int) -> Pricing:
        """The part of the plans that first execute `first` before `then`, with nothing priced."""
        return Pricing(self.graph.ordered(first, then), self.budget, self.order, self.work, whole=False)

    def price(self, ops: Iterable[int]) -> None:
        """Price the instants of `ops` that are new."""
        for op in ops:
            if op not in self.priced:
                network, room = self.network(op)
                # Only the highest instant counts, so the others need not be climbed to their end.
                self.priced[op] = relax(network, room, above_ns=self.bound_ns)
                self.work.done += self.priced[op].work + len(self.graph.live)

    def network(self, op: int) -> tuple[Network, int]:
        """The network of the instant of `op`, and the bytes left for storages alive by choice."""
        instant = Instant.of(self.graph, op, self.order)
        return network_of(self.graph, instant), self.budget - instant.held_bytes

    @property
    def infeasible(self) -> bool:
        """Whether no choice fits the budget at some instant, so that no plan of the class does."""
        return any(not found.feasible for found in self.priced.values())

    @property
    def bound_ns(self) -> int:
        """The highest bound of an instant."""
        return max((found.bound_ns for found in self.priced.values()), default=0)

    def best(self, count: int) -> list[int]:
        """Instants of the highest bounds above zero, best first; before them, those at which nothing fits."""
        ranked = sorted(self.priced, key=lambda op: (self.priced[op].feasible, -self.priced[op].bound_ns, op))
        return [op for op in ranked if self.priced[op].bound_ns or not self.priced[op].feasible][:count]


class Profile:
    """Bytes alive at each operator that can be an instant, in the order of the step that keeps everything.

    Attributes:
        ops: The operators in that order.
        place: Place of each in `ops`.
    """

    def __init__(self, problem: RematProblem, graph: StepGraph) -> None:
        index = StepIndex.of(problem.graph)
        # Everything saved: instants that stay within the budget even then force nothing.
        plan = recompute(index, baseline_order(index, Placement.LAZY), index.all_savable())
        seen: dict[int, int] = {}
        for op, size in zip(plan.steps, simulate(problem.graph, problem.costs, plan).live_bytes.tolist()):
            if graph.live[op] and graph.phase[op] is not Phase.TANGENT_FREE:
                # An instant is a first execution.
                seen.setdefault(int(op), size)
        self.ops = list(seen)
        self.place = {op: i for i, op in enumerate(self.ops)}
        self._live_bytes = list(seen.values())
        self._budget = problem.budget_bytes

    def spread(self, count: int) -> list[int]:
        """Up to `count` instants over the budget: half of them the highest, half the highest of equal parts."""
        over = [i for i, size in enumerate(self._live_bytes) if size > self._budget]
        # The highest often are neighbours that force the same; equal parts find instants elsewhere.
        highest = sorted(over, key=lambda i: (-self._live_bytes[i], self.ops[i]))[: max(count - count // 2, 1)]
        return list(dict.fromkeys([*(self.ops[i] for i in highest), *self.parts(max(count // 2, 1))]))

    def parts(self, count: int, behind: int | None = None) -> list[int]:
        """The highest instant of each of `count` equal parts of those over the budget, or of those after `behind`."""
        start = 0 if behind is None else self.place[behind] + 1
        over = [i for i in range(start, len(self.ops)) if self._live_bytes[i] > self._budget]
        # With fewer instants than parts some parts are empty.
        parts = [part.tolist() for part in np.array_split(np.array(over, np.int64), max(count, 1)) if len(part)]
        return [self.ops[max(part, key=lambda i: (self._live_bytes[i], -self.ops[i]))] for part in parts[:count]]

    def near(self, centres: Iterable[int], reach: int) -> list[int]:
        """Instants up to `reach` places from one of `centres`."""
        places = [self.place[c] + s for c in centres for d in range(1, reach + 1) for s in (-d, d)]
        return [self.ops[i] for i in dict.fromkeys(places) if 0 <= i < len(self.ops)]
