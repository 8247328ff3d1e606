"""The best lower bound of the added time that an effort allows, and a planner's result with it.

    choose      instants: where the step without recomputation is highest, overall and in each part of it
    price       each of them by minimum cuts (`relaxed`)
    look near   the best ones
    split       the plans by the order of two operators (`orders`), each part with its own best instants
    count       equal results at the best instant (`counted`)
    link        the best one with others (`linked`), on graphs that are not too large
    close       the best one by branch and bound (`one_instant`), with an effort that asks for it

Every figure of an instant is a bound by itself, so their maximum bounds its part, and the lowest of all parts bounds
all plans.  Work is counted, never timed: the same problem gives the same bound anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import UNLIMITED_BYTES, RematProblem
from remat_passes.bounds.counted import counted_bound_ns
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.linked import FINER, LINKED, Held, LinkedEffort, chain_of, linked_bound
from remat_passes.bounds.orders import split_orders
from remat_passes.bounds.pricing import Pricing, Profile, Work
from remat_passes.bounds.solved import USUAL_WORK
from remat_passes.bounds.step_graph import StepGraph

if TYPE_CHECKING:
    from remat_passes.exact.backends import SolverOptions


CLOSED = 1e-3
"""Part of the added time that a bound of single instants may leave open without programs being solved for it."""


@dataclass(frozen=True, slots=True)
class BoundEffort:
    """How much to do for a bound.

    Attributes:
        instants: Instants priced at most, before looking near the best.
        near: Instants priced too on either side of each of the best.
        splits: Splits of the plans by the order of two operators, at most.
        pairs: Instants whose orders are tried for each split.
        closed: Number of instants, best first, that branch and bound refines.
        nodes: Nodes of branch and bound for each.
        gap: Relative gap at which branch and bound stops.
        linked: Instants of one linked program; 0 or 1 for none.
        linked_operators: Operators of the largest graph whose instants are linked.
        program: How hard their program is tried.
        largest: Nodes and arcs of the largest network that branch and bound takes.
        solver: Solver of branch and bound for one instant, see `remat_passes.exact.backends.SolverOptions`.
    """

    instants: int = 20
    near: int = 3
    splits: int = 1
    pairs: int = 2
    closed: int = 0
    nodes: int = 200
    gap: float = 1e-3
    linked: int = 8
    linked_operators: int = 1_100
    program: LinkedEffort = LINKED
    largest: int = 20_000
    solver: str = "cbc"


QUICK = BoundEffort()
"""Cheap enough for every report: about a tenth of the time of `auto`."""
THOROUGH = BoundEffort(
    instants=60,
    near=6,
    splits=8,
    pairs=6,
    closed=1,
    linked=16,
    linked_operators=5_000,
    program=LinkedEffort(most_work=100 * USUAL_WORK, largest_whole=10_000, nodes=200),
    solver="highs",
)
"""For studies: seconds to minutes."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound that no plan of a class can beat.

    Attributes:
        bound_ns: Lower bound of the added time within the budget.
        instant: Operator whose first execution forces it; `None` if nothing is forced.
        how: The proof, in a few words.
        order: Plans for which it holds.
        infeasible: Proven that no plan of the class keeps the budget.
        work: Work done, about nodes of networks visited.
        held: What a solution of linked instants holds at each of them: plans to begin with.
    """

    bound_ns: int
    instant: OpId | None
    how: str
    order: OrderClass
    infeasible: bool = False
    work: int = 0
    held: tuple[Held, ...] = ()


def lower_bound_ns(problem: RematProblem, effort: BoundEffort = QUICK, order: OrderClass = OrderClass.ANY) -> Bound:
    """The bound of the added time of all plans of `order` within the budget of `problem`."""
    whole = Pricing(StepGraph.of(problem), problem.budget_bytes, order, Work())
    profile = Profile(problem, whole.graph)
    whole.price(profile.spread(effort.instants))
    whole.price(profile.near(whole.best(2), effort.near))
    parts = split_orders(whole, effort.splits, effort.pairs)
    bounds = [_counted(part) for part in parts]
    refined = [False] * len(parts)
    # Only the lowest part decides, so each integer program goes to it; done when it is refined and still the lowest.
    while True:
        lowest = min(range(len(parts)), key=lambda i: (bounds[i].infeasible, bounds[i].bound_ns))
        if refined[lowest] or bounds[lowest].infeasible:
            return replace(bounds[lowest], work=whole.work.done)
        bounds[lowest], refined[lowest] = _refined(parts[lowest], bounds[lowest], profile, effort), True


def with_bound(result: PlanResult, problem: RematProblem, effort: BoundEffort = QUICK) -> PlanResult:
    """`result` with the bound of all valid plans; OPTIMAL where its plan meets it.

    Nothing is computed if nothing is recomputed, or if the plan misses the budget.
    """
    if result.plan is None or result.added_ns == 0 or result.peak_bytes > problem.budget_bytes:
        return result
    asked = without_transfers(problem, result.added_ns)
    # Single instants take next to no time; where they leave next to nothing open, programs have nothing to add.
    single = replace(effort, linked=0, closed=0)
    found = lower_bound_ns(asked, single).bound_ns
    if effort != single and result.added_ns - found > CLOSED * result.added_ns:
        found = lower_bound_ns(asked, effort).bound_ns
    # The planner may have proven more on its own.
    if problem.moves:
        # Only plans that add no more than this one are bounded by it.
        found = min(found, result.added_ns)
    bound = max(result.lower_bound_ns, found)
    return replace(
        result, lower_bound_ns=bound, status=PlanStatus.OPTIMAL if bound >= result.added_ns else result.status
    )


def without_transfers(problem: RematProblem, added_ns: int) -> RematProblem:
    """A problem in which nothing is moved, and of which each bound bounds the plans of `problem`, too.

    A plan without its transfers has the same operators, adds no more time, and peaks higher by at most what was off the
    device: so it is a plan within a budget that is larger by that.  What is off at one instant was copied out before it
    and is copied back after it, one value after the other: all of that passes within the step.

    Args:
        problem: The problem.
        added_ns: Plans that add more time than this are not bounded.
    """
    if not problem.moves:
        return problem
    # A copy's time is rounded down to whole nanoseconds.
    step_ns, off_bytes = problem.costs.step_ns + added_ns + 2 * len(problem.graph.storages), 0
    for link in problem.costs.links:
        there, back = link.most_out_bytes_per_s, link.most_back_bytes_per_s
        # ceil(step_ns / (1 / there + 1 / back)), with nanoseconds as parts of a second.
        off_bytes -= -step_ns * there * back // ((there + back) * 10**9)
    larger = problem.budget_bytes + min(off_bytes, problem.offload_bytes)
    return replace(problem, budget_bytes=min(larger, max(problem.budget_bytes, UNLIMITED_BYTES)), offload_bytes=0)


def _counted(part: Pricing) -> Bound:
    """The bound of `part` by its priced instants."""
    # Instants at which nothing fits come first.
    if part.infeasible:
        return Bound(0, OpId(part.best(1)[0]), "no way through one instant", part.order, True)
    best = part.best(1)
    if not best:
        return Bound(0, None, "nothing is forced", part.order)
    priced = part.priced[best[0]]
    counted = counted_bound_ns(*part.network(best[0]), priced, part.work)
    how = "one instant, priced" if counted == priced.bound_ns else "one instant, counted"
    return Bound(counted, OpId(best[0]), how if part.whole else f"{how}, by orders", part.order)


def _refined(part: Pricing, bound: Bound, profile: Profile, effort: BoundEffort) -> Bound:
    """`bound` of `part`, or a higher one from several instants and from integer programs."""
    found = [bound, *_linked(part, profile, effort)]
    # Nothing is left to raise where no plan fits.
    if not any(one.infeasible for one in found):
        found += [_closed(part, op, effort) for op in part.best(effort.closed)]
    best = max(found, key=lambda one: (one.infeasible, one.bound_ns))
    return replace(best, held=next((one.held for one in found if one.held), ()))


def _closed(part: Pricing, op: int, effort: BoundEffort) -> Bound:
    """The bound of the instant of `op` by branch and bound."""
    # Loading PuLP takes longer than pricing does.
    from remat_passes.bounds.one_instant import integer_bound_ns

    network, room = part.network(op)
    # The solver would not get far within its nodes.
    if network.nodes + len(network.tail) > effort.largest:
        return Bound(0, OpId(op), "too large for branch and bound", part.order)
    found = integer_bound_ns(network, room, _solver(effort))
    how = f"one instant, {effort.solver}"
    return Bound(found or 0, OpId(op), how, part.order, infeasible=found is None)


def _linked(part: Pricing, profile: Profile, effort: BoundEffort) -> Iterator[Bound]:
    """The bound of the best instant with others, if there are any."""
    best = part.best(1)
    if effort.linked < 2 or not best or len(part.graph.live) > effort.linked_operators:
        return
    candidates = [*best, *profile.parts(effort.linked), *profile.parts(FINER * effort.linked)]
    instants = chain_of(part.graph, part.order, candidates, effort.linked)
    if len(instants) > 1:
        found = linked_bound(part, instants, effort.program)
        part.work.done += found.work
        how = f"{found.instants} instants linked" + (", branch and bound" if found.whole else "")
        how = how if part.whole else f"{how}, by orders"
        yield Bound(found.bound_ns, OpId(best[0]), how, part.order, found.infeasible, held=found.held)


def _solver(effort: BoundEffort) -> SolverOptions:
    from remat_passes.exact.backends import SolverOptions

    # Nodes limit it, not seconds, so that the bound is the same on any machine.
    return SolverOptions(solver=effort.solver, time_limit_s=None, node_limit=effort.nodes, gap=effort.gap)
