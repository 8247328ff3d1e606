"""Sequences of slots around a plan: what must run, and where more may run, as the room for an integer program.

A slot is a place in a sequence at which one operator runs.  The slots of the plan stand in its order, whatever order
that is; others stand just before a step of the backward that reads something, for the operators that could make it
again there:

    plan     f0 f1 f2 |           b2       b1    b0
    slots    f0 f1 f2 | (f0) (f1) b2  (f0) b1    b0

A slot is optional if the plan would be valid without it as long as nobody reads its results, or somebody else makes
them.  Operators that are not free run exactly as in the plan, which is what makes a program around it small: its size
is the number of optional slots, not that of the operators times the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.exact.space import may_repeat
from remat_passes.sequences.sequence import StepIndex, drop_dead_repeats

NEAR = 2
"""Steps since a value was last made or read within which nothing is gained by making it again."""


@dataclass(frozen=True, slots=True)
class Slots:
    """A sequence of slots.

    Attributes:
        ops: Operator of each slot.
        optional: Whether each may be left out.
        planned: Whether the plan runs each.
        boundary: Slots ahead of the boundary between forward and backward.
    """

    ops: tuple[int, ...]
    optional: tuple[bool, ...]
    planned: tuple[bool, ...]
    boundary: int

    @property
    def choices(self) -> int:
        """Number of optional slots."""
        return sum(self.optional)

    def plan(self, index: StepIndex, runs: Sequence[bool]) -> Plan:
        """The plan of the slots that run, without repetitions that nobody reads."""
        steps = tuple(OpId(op) for op, run in zip(self.ops, runs) if run)
        return drop_dead_repeats(index, Plan(steps, sum(runs[: self.boundary])))


def repeatable_ops(problem: RematProblem) -> list[bool]:
    """For each operator, whether it may have optional slots."""
    # A random state lives from the first execution on, which is a choice for tangent-free operators.
    return [
        may_repeat(op) and not (op.phase is Phase.TANGENT_FREE and op.replay is not None) for op in problem.graph.ops
    ]


def slots_around(index: StepIndex, plan: Plan, free: Sequence[bool], depth: int) -> Slots:
    """The slots of `plan` and those in which free operators may run again.

    Args:
        index: The graph.
        plan: The plan, without transfers.
        free: For each operator, whether its slots are optional; it must be repeatable.
        depth: Operators that may run again one after the other for a read; 0 for none but the plan's own.
    """
    ops: list[int] = []
    optional: list[bool] = []
    planned: list[bool] = []
    boundary = 0
    seen: set[int] = set()
    touched = [-1] * len(index.producer)
    for step, op in enumerate(plan.steps):
        if step == plan.boundary:
            boundary = len(ops)
        if step >= plan.boundary:
            again = _makers(index, op, free, seen, touched, step, depth)
            ops += again
            optional += [True] * len(again)
            planned += [False] * len(again)
        # The first execution is no choice, unless nothing but a read asks for the operator.
        optional.append(free[op] and (op in seen or not index.demanded[op]))
        ops.append(op)
        planned.append(True)
        seen.add(op)
        for s in (*index.reads[op], *index.writes[op]):
            touched[s] = step
    if plan.boundary >= len(plan.steps):
        boundary = len(ops)
    return Slots(tuple(ops), tuple(optional), tuple(planned), boundary)


def _makers(
    index: StepIndex, op: int, free: Sequence[bool], seen: set[int], touched: Sequence[int], step: int, depth: int
) -> list[int]:
    """Free operators that may run again for what `op` reads at `step`, in joint order."""
    found: set[int] = set()
    layer = {op}
    for _ in range(depth):
        makers = {
            index.producer[s]
            for reader in layer
            for s in index.reads[reader]
            # What was just used is still there; a kept value always is.
            if step - touched[s] > NEAR and not index.kept[s] and index.producer[s] >= 0
        }
        # One that the plan runs later for the first time may run earlier only if its own inputs are there.
        layer = {m for m in makers if free[m] and m in seen} - found
        found |= layer
    return sorted(found)
