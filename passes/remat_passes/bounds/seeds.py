"""Plans that hold what a solution of linked instants holds, for searches to begin with.

The instants are linked in one order of first executions, such as that of the best plan known: there every two of them
can be linked, and the program need not decide what ran before which.  What it proves in that order is no bound of other
plans, and is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.bounds.instant import OrderClass
from remat_passes.bounds.linked import Held
from remat_passes.bounds.lower_bound import BoundEffort, lower_bound_ns
from remat_passes.sequences.sequence import Order, StepIndex, drop_dead_repeats, recompute_closure


@dataclass(frozen=True, slots=True)
class Seed:
    """A plan to begin with.

    Attributes:
        plan: The plan; it may be over any budget.
        work: Work done for it, in the unit of `remat_passes.planning.portfolio`.
    """

    plan: Plan | None
    work: int


def linked_seed(problem: RematProblem, index: StepIndex, like: Plan, effort: BoundEffort) -> Seed:
    """The plan that a solution of linked instants stands for; `None` for a plan if there is no solution.

    Args:
        problem: The problem.
        index: Its graph.
        like: A plan, whose order of first executions is kept.
        effort: How many instants are linked, and how hard their program is tried.
    """
    order = first_order(like)
    ops = [*order.forward, *order.backward]
    # What `like` leaves out runs in no plan that is worth anything, but a graph has all of its operators.
    ops += sorted(set(range(len(index.reads))).difference(ops))
    bound = lower_bound_ns(_in_order(problem, ops), effort, OrderClass.JOINT)
    held = [replace(one, op=ops[one.op]) for one in bound.held]
    return Seed(plan_holding(index, order, held) if held else None, bound.work)


def first_order(plan: Plan) -> Order:
    """The order in which `plan` first runs each of its operators."""
    forward = dict.fromkeys(plan.steps[: plan.boundary])
    backward = dict.fromkeys(op for op in plan.steps[plan.boundary :] if op not in forward)
    return Order(tuple(forward), tuple(backward))


def _in_order(problem: RematProblem, ops: Sequence[int]) -> RematProblem:
    """`problem` with its operators numbered in another order."""
    graph, costs = problem.graph, problem.costs
    return replace(
        problem,
        graph=replace(graph, ops=tuple(replace(graph.ops[old], id=OpId(new)) for new, old in enumerate(ops))),
        costs=replace(
            costs,
            time_ns=tuple(costs.time_ns[i] for i in ops),
            workspace_bytes=tuple(costs.workspace_bytes[i] for i in ops),
            provenance=tuple(costs.provenance[i] for i in ops),
        ),
        reference=None,
    )


def plan_holding(index: StepIndex, order: Order, held: Sequence[Held]) -> Plan:
    """The plan that runs `order` and at each instant holds no more than it must; it may be over any budget.

    Values that are not held are made again when they are next read, those that are held but not there just before the
    instant.  Between two instants everything that was made stays.

    Args:
        index: The graph.
        order: Each operator once.
        held: What is held when some of its operators first run.
    """
    walk = _Walk(index, {one.op: one.storages for one in held})
    for op in order.forward:
        walk.first(op)
    boundary = len(walk.steps)
    walk.drop(index.unsavable)
    for op in order.backward:
        walk.first(op)
    return drop_dead_repeats(index, Plan(tuple(map(OpId, walk.steps)), boundary))


class _Walk:
    """The steps of a plan, one after the other."""

    def __init__(self, index: StepIndex, held: dict[int, frozenset[int]]) -> None:
        self.index, self.held, self.steps = index, held, list[int]()
        self.always = index.always_at_hand()
        self.at_hand = [producer < 0 for producer in index.producer]
        self.made = [False] * len(index.producer)

    def first(self, op: int) -> None:
        """Run `op` for the first time, behind what it needs."""
        if op in self.held:
            # A value that is alive only later has not been made yet.
            self._make(s for s in sorted(self.held[op]) if self.made[s])
            self.drop([s not in self.held[op] for s in range(len(self.made))])
        self._make(self.index.reads[op])
        self._run(op)

    def drop(self, gone: Sequence[bool]) -> None:
        """Forget what is `gone`, as far as a later read may not find the first instance in any case."""
        self.at_hand = [there and (always or not g) for there, always, g in zip(self.at_hand, self.always, gone)]

    def _make(self, wanted: Iterable[int]) -> None:
        for op in recompute_closure(self.index, wanted, self.at_hand):
            self._run(op)

    def _run(self, op: int) -> None:
        self.steps.append(op)
        for s in self.index.writes[op]:
            self.at_hand[s] = self.made[s] = True
