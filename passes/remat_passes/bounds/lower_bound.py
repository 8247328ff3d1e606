"""The best lower bound of the added time that an effort allows, and a planner's result with it.

    choose      instants: where the step without recomputation is highest, overall and in each part of it
    price       each of them by minimum cuts (`relaxed`)
    look near   the best ones
    close       the best one by branch and bound (`one_instant`), with an effort that asks for it
    link        the best one with others behind it (`windows`), likewise

Every figure of an instant is a bound by itself, so their maximum is one.  Work is counted, never timed: the same
problem gives the same bound anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.bounds.instant import Instant, OrderClass
from remat_passes.bounds.network import network_of
from remat_passes.bounds.relaxed import Relaxed, relax
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.planning.sequence import Placement, StepIndex, baseline_order, recompute


@dataclass(frozen=True, slots=True)
class BoundEffort:
    """How much to do for a bound.

    Attributes:
        instants: Instants priced at most, before looking near the best.
        near: Instants before and behind the best that are priced too.
        closed: Instants, best first, that branch and bound goes on with.
        nodes: Nodes of branch and bound for each.
        gap: Relative gap at which branch and bound stops.
        linked: Instants of one linked program; 0 or 1 for none.
        largest: Variables of the largest program that is solved.
        solver: Solver of branch and bound, see `remat_passes.exact.backends.SolverOptions`.
    """

    instants: int = 20
    near: int = 3
    closed: int = 0
    nodes: int = 200
    gap: float = 1e-3
    linked: int = 0
    largest: int = 3_500
    solver: str = "cbc"


QUICK = BoundEffort()
"""What every report can afford: about a tenth of what `auto` takes."""
THOROUGH = BoundEffort(instants=60, near=6, closed=1, linked=4, solver="highs")
"""For studies: seconds to minutes."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What no plan of a class can beat.

    Attributes:
        bound_ns: Lower bound of the added time within the budget.
        instant: Operator whose first execution forces it; `None` where nothing is forced.
        how: What proved it, in a few words.
        order: Plans for which it holds.
        infeasible: Proven that no plan of the class keeps the budget.
        work: Work done, about nodes of networks visited.
    """

    bound_ns: int
    instant: OpId | None
    how: str
    order: OrderClass
    infeasible: bool = False
    work: int = 0


def lower_bound_ns(problem: RematProblem, effort: BoundEffort = QUICK, order: OrderClass = OrderClass.ANY) -> Bound:
    """The bound of the added time of all plans of `order` within the budget of `problem`."""
    search = _Search(problem, order)
    profile = _profile(problem, search.graph)
    search.price(_spread(profile, problem.budget_bytes, effort.instants))
    search.price(_neighbours([op for op, _ in profile], search.best(2), effort.near))
    if search.infeasible:
        return Bound(0, OpId(search.best(1)[0]), "no way through one instant", order, True, search.work)
    found = [Bound(0, None, "nothing is forced", order)]
    found += [Bound(search.priced[op].bound_ns, OpId(op), "one instant, priced", order) for op in search.best(1)]
    found += [_closed(search, op, effort) for op in search.best(effort.closed)]
    found += [_linked(search, op, profile, effort) for op in search.best(1 if effort.linked > 1 else 0)]
    best = max(found, key=lambda bound: (bound.infeasible, bound.bound_ns))
    return replace(best, work=search.work)


def with_bound(result: PlanResult, problem: RematProblem, effort: BoundEffort = QUICK) -> PlanResult:
    """`result` with the bound of all valid plans; OPTIMAL where its plan meets it.

    Nothing is computed where nothing was recomputed, or where the plan misses the budget.
    """
    if result.plan is None or result.added_ns == 0 or result.peak_bytes > problem.budget_bytes:
        return result
    bound = max(result.lower_bound_ns, lower_bound_ns(problem, effort).bound_ns)
    return replace(
        result, lower_bound_ns=bound, status=PlanStatus.OPTIMAL if bound >= result.added_ns else result.status
    )


class _Search:
    """Instants priced so far."""

    def __init__(self, problem: RematProblem, order: OrderClass) -> None:
        self.graph = StepGraph.of(problem)
        self.budget = problem.budget_bytes
        self.order = order
        self.priced: dict[int, Relaxed] = {}
        self.work = 0

    def price(self, ops: Iterable[int]) -> None:
        """Price the instants of `ops` that are new."""
        for op in ops:
            if op not in self.priced:
                instant = Instant.of(self.graph, op, self.order)
                self.priced[op] = relax(network_of(self.graph, instant), self.budget - instant.held_bytes)
                self.work += self.priced[op].work + len(self.graph.live)

    @property
    def infeasible(self) -> bool:
        """Whether some instant has no way through."""
        return any(not found.feasible for found in self.priced.values())

    def best(self, count: int) -> list[int]:
        """Instants of the highest bounds above zero, or those without a way through, best first."""
        ranked = sorted(self.priced, key=lambda op: (self.priced[op].feasible, -self.priced[op].bound_ns, op))
        return [op for op in ranked if self.priced[op].bound_ns or not self.priced[op].feasible][:count]


def _closed(search: _Search, op: int, effort: BoundEffort) -> Bound:
    """The bound of the instant of `op` by branch and bound."""
    # Loading PuLP takes longer than pricing does.
    from remat_passes.bounds.one_instant import integer_bound_ns
    from remat_passes.exact.backends import SolverOptions

    instant = Instant.of(search.graph, op, search.order)
    options = SolverOptions(solver=effort.solver, time_limit_s=None, node_limit=effort.nodes, gap=effort.gap)
    network = network_of(search.graph, instant)
    if network.nodes + len(network.tail) > effort.largest:
        return Bound(0, OpId(op), "too large for branch and bound", search.order)
    found = integer_bound_ns(network, search.budget - instant.held_bytes, options)
    how = f"one instant, {effort.solver}"
    return Bound(found or 0, OpId(op), how, search.order, infeasible=found is None)


def _linked(search: _Search, op: int, profile: list[tuple[int, int]], effort: BoundEffort) -> Bound:
    """The bound of the instant of `op` together with some behind it."""
    # Loading PuLP takes longer than pricing does.
    from remat_passes.bounds.one_instant import proven_ns
    from remat_passes.bounds.windows import in_a_row, windows_program
    from remat_passes.exact.backends import SolverOptions
    from remat_passes.exact.solver import SolveStatus, solve

    none = Bound(0, OpId(op), "no linked instants", search.order)
    place = [i for i, _ in profile].index(op)
    others = _parts(profile[place + 1 :], search.budget, effort.linked - 1)
    instants = in_a_row([Instant.of(search.graph, i, search.order) for i in [op, *others]])
    if len(instants) < 2:
        return none
    model = windows_program(search.graph, instants, search.budget)
    if len(model.variables()) > effort.largest:
        return none
    options = SolverOptions(solver=effort.solver, time_limit_s=None, node_limit=effort.nodes, gap=effort.gap)
    solution = solve(model, options)
    infeasible = solution.status is SolveStatus.INFEASIBLE
    how = f"{len(instants)} instants linked, {effort.solver}"
    return Bound(0 if infeasible else proven_ns(solution), OpId(op), how, search.order, infeasible)


def _profile(problem: RematProblem, graph: StepGraph) -> list[tuple[int, int]]:
    """Operators that can be instants with the bytes alive while they run, in the order of the graph's own step."""
    index = StepIndex.of(problem.graph)
    plan = recompute(index, baseline_order(index, Placement.LAZY), index.all_savable())
    live_bytes = simulate(problem.graph, problem.costs, plan).live_bytes.tolist()
    seen: dict[int, int] = {}
    for op, size in zip(plan.steps, live_bytes):
        if graph.live[op] and graph.phase[op] is not Phase.TANGENT_FREE:
            seen.setdefault(int(op), size)
    return list(seen.items())


def _spread(profile: list[tuple[int, int]], budget: int, count: int) -> list[int]:
    """Up to `count` instants over the budget: half of them the highest, half the highest of equal parts."""
    over = [(op, size) for op, size in profile if size > budget]
    highest = sorted(over, key=lambda one: (-one[1], one[0]))[: max(count - count // 2, 1)]
    return list(dict.fromkeys([*(op for op, _ in highest), *_parts(profile, budget, max(count // 2, 1))]))


def _parts(profile: list[tuple[int, int]], budget: int, count: int) -> list[int]:
    """The highest instant of each of `count` equal parts of those over the budget."""
    over = [(op, size) for op, size in profile if size > budget]
    parts = [part.tolist() for part in np.array_split(np.arange(len(over)), count) if len(part)]
    return [max((over[i] for i in part), key=lambda one: (one[1], -one[0]))[0] for part in parts]


def _neighbours(ops: list[int], centres: list[int], reach: int) -> list[int]:
    """Instants up to `reach` places from one of `centres`."""
    place = {op: i for i, op in enumerate(ops)}
    near = [place[c] + step for c in centres for distance in range(1, reach + 1) for step in (-distance, distance)]
    return [ops[i] for i in dict.fromkeys(near) if 0 <= i < len(ops)]
