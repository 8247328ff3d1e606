"""All policies of a problem, and their plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import OpId, StorageId
from remat_compiler.ir.plan import Plan, Transfer, in_pages
from remat_compiler.ir.problem import RematProblem
from remat_passes.policies.decode import decode
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE, Policies
from remat_passes.sequences.profile import IntArray, arrays_of
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute
from remat_passes.transfers.gaps import movable_storages


@dataclass(frozen=True, slots=True, eq=False)
class PolicySpace:
    """All policies of a problem for one order of its operators.

    Attributes:
        problem: The problem.
        index: The same as lists.
        order: Every operator once.
        policies: The same for compiled loops.
    """

    problem: RematProblem
    index: StepIndex
    order: Order
    policies: Policies

    @staticmethod
    def of(problem: RematProblem, order: Order) -> PolicySpace:
        """The policies of `problem` in an order; nothing may be moved where it has no link or no room."""
        index = StepIndex.of(problem.graph)
        values = _saved(index, order)
        sizes = [storage.size_bytes for storage in problem.graph.storages]
        link = problem.costs.links[0] if problem.moves else None
        allowed = np.zeros((len(values), 3), np.bool_)
        allowed[:, KEEP] = True
        allowed[:, MOVE] = movable_storages(problem.graph)[values] & (link is not None)
        allowed[:, MOVE] &= np.array([in_pages(sizes[s]) <= problem.offload_bytes for s in values.tolist()], np.bool_)
        allowed[:, RECOMPUTE] = [not index.pinned[index.producer[s]] for s in values.tolist()]
        nothing = [0] * len(sizes)
        policies = Policies(
            arrays_of(problem),
            np.array(order.forward, np.int64),
            np.array(order.backward, np.int64),
            np.array(index.always_at_hand(), np.bool_),
            values,
            allowed,
            *_groups(problem, index, values),
            np.array(nothing if link is None else [link.out_ns(size) for size in sizes], np.int64),
            np.array(nothing if link is None else [link.back_ns(size) for size in sizes], np.int64),
            0 if link is None else link.drag_percent,
            0 if link is None else link.begin_ns,
            np.array([in_pages(size) for size in sizes], np.int64),
            problem.offload_bytes,
            problem.budget_bytes,
        )
        return PolicySpace(problem, index, order, policies)

    @staticmethod
    def of_plan(problem: RematProblem, plan: Plan) -> PolicySpace:
        """The policies in the order in which `plan` first executes each operator."""
        steps = list(dict.fromkeys(plan.steps))
        ahead = set(plan.steps[: plan.boundary])
        forward = tuple(op for op in steps if op in ahead)
        return PolicySpace.of(problem, Order(forward, tuple(op for op in steps if op not in ahead)))

    @staticmethod
    def of_all(problem: RematProblem) -> list[PolicySpace]:
        """One for each placement of tangent-free operators that gives an order of its own."""
        index = StepIndex.of(problem.graph)
        orders = dict.fromkeys(baseline_order(index, placement) for placement in Placement)
        return [PolicySpace.of(problem, order) for order in orders]

    @property
    def kept(self) -> Plan:
        """The plan that keeps everything that may be saved."""
        return self.plan(self.all_of(KEEP))

    def all_of(self, action: int) -> IntArray:
        """The policy that gives `action` to all values that may have it, and keeps the others."""
        return self.allowed(np.full(len(self.policies.values), action, np.int64))

    def allowed(self, wanted: IntArray) -> IntArray:
        """The policy `wanted`, but for values that may not have their action: these are kept."""
        able = self.policies.allowed[np.arange(len(wanted)), wanted]
        return np.where(able, wanted, KEEP).astype(np.int64)

    def actions_of(self, plan: Plan) -> IntArray:
        """The policy that is nearest to `plan`: values made more than once, and values moved."""
        again = {op for op, count in Counter(plan.steps).items() if count > 1}
        moved = {one.storage for one in plan.transfers}
        wanted = [
            MOVE if storage in moved else RECOMPUTE if self.index.producer[storage] in again else KEEP
            for storage in self.policies.values.tolist()
        ]
        return self.allowed(np.array(wanted, np.int64))

    def plan(self, actions: IntArray) -> Plan:
        """The plan of a policy: one of `KEEP`, `MOVE`, `RECOMPUTE` for each of `Policies.values`."""
        steps, boundary, moved, places = decode(self.policies, actions)
        transfers: tuple[Transfer, ...] = ()
        if self.problem.moves:
            tier = self.problem.costs.links[0].tier
            transfers = tuple(
                Transfer(StorageId(storage), leaves, returns, tier)
                for storage, (leaves, returns) in zip(moved.tolist(), places.tolist())
            )
        return Plan(tuple(map(OpId, steps.tolist())), int(boundary), transfers)


def _groups(problem: RematProblem, index: StepIndex, values: IntArray) -> tuple[IntArray, IntArray]:
    """`Policies.alike` and `Policies.group_sizes`."""
    ops = problem.graph.ops
    kinds = [(ops[index.producer[s]].target, index.size_bytes[s]) for s in values.tolist()]
    number = {kind: n for n, kind in enumerate(dict.fromkeys(kinds))}
    alike = np.array([number[kind] for kind in kinds], np.int64)
    return alike, np.bincount(alike, minlength=len(number)).astype(np.int64)


def _saved(index: StepIndex, order: Order) -> IntArray:
    """What the forward saves if nothing is recomputed but what must not be saved, without what the caller holds."""
    plan = recompute(index, order, index.all_savable())
    made = {s for op in plan.steps[: plan.boundary] for s in index.writes[op]}
    read: set[int] = set()
    for op in reversed(plan.steps[plan.boundary :]):
        read = (read - set(index.writes[op])) | set(index.reads[op])
    able = (s for s in made & read if not index.kept[s] and not index.unsavable[s] and index.size_bytes[s] > 0)
    return np.array(sorted(able), np.int64)
