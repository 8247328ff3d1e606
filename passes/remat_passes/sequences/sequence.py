"""Build plans as sequences of operators: baseline orders, recomputation, removal of dead repeats.

    order       f0 f1 f2 | b2 b1 b0             each operator once (`Order`)
    saved       the result of f0
    plan        f0 f1 f2 | f1 f2 b2 b1 b0       missing results recomputed (`recompute`), and ...
    plan        f0 f1 f2 | f1 b2 b1 b0          ... repeats that nobody reads dropped (`drop_dead_repeats`)

A plan needs no list of saved values: a value that is not recomputed before it is read is saved.  Everything here is
linear in the graph.  Kept storages are always available, and so are the results of *pinned* operators, which
run once: those marked `no_recompute` and those whose results the user wants saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, StorageKind, TrainingGraph
from remat_compiler.ir.plan import Plan


class Placement(str, Enum):
    """Where tangent-free operators run (the backward needs them, they need no tangent); neither is always better."""

    LAZY = "lazy"
    """In the backward, just before the first use."""
    JOINT = "joint"
    """Where they stand in the joint order; before the last forward operator means in the forward."""


@dataclass(frozen=True, slots=True, eq=False)
class StepIndex:
    """A graph as plain lists, for planners that walk it; resident storages and tangents are left out.

    Attributes:
        reads: Storages that each operator reads.
        writes: Storages that each operator makes.
        producer: Operator that makes each storage; -1 for inputs, parameters and tangents.
        size_bytes: Bytes of each storage; 0 for those left out.
        kept: Whether the caller holds the first instance of each storage to the end of the step.
        phase: Part of the step of each operator.
        pinned: Whether each operator may run only once.
        demanded: Whether each operator must run even if nobody reads its results: all but free tangent-free
            ones.  A free one is not pinned, has results, and none of them is kept.
        unsavable: Whether each storage must not cross from forward to backward (unless its operator is
            pinned, which is stronger).
    """

    reads: list[list[int]]
    writes: list[list[int]]
    producer: list[int]
    size_bytes: list[int]
    kept: list[bool]
    phase: list[Phase]
    pinned: list[bool]
    demanded: list[bool]
    unsavable: list[bool]

    @staticmethod
    def of(graph: TrainingGraph) -> StepIndex:
        """The index of `graph`."""
        counted = [not s.resident and s.kind is not StorageKind.TANGENT for s in graph.storages]
        producer = [-1] * len(graph.storages)
        unsavable = [False] * len(graph.storages)
        pinned = [is_pinned(op) for op in graph.ops]
        for op in graph.ops:
            forbidden = op.save_policy is SavePolicy.MUST_NOT_SAVE and not pinned[op.id]
            for s in op.writes:
                producer[s] = op.id
                unsavable[s] = forbidden and not graph.storages[s].kept
        return StepIndex(
            reads=[[s for s in op.reads if counted[s]] for op in graph.ops],
            writes=[[s for s in op.writes if counted[s]] for op in graph.ops],
            producer=producer,
            size_bytes=[s.size_bytes if c else 0 for s, c in zip(graph.storages, counted)],
            kept=[s.kept for s in graph.storages],
            phase=[op.phase for op in graph.ops],
            pinned=pinned,
            demanded=[
                op.phase is not Phase.TANGENT_FREE
                or pinned[op.id]
                or not op.writes
                or any(graph.storages[s].kept for s in op.writes)
                for op in graph.ops
            ],
            unsavable=unsavable,
        )

    def all_savable(self) -> list[bool]:
        """For each storage, whether the forward may save it."""
        return [not forbidden for forbidden in self.unsavable]

    def always_at_hand(self) -> list[bool]:
        """For each storage, whether its first instance serves every read: it is kept, or a pinned operator makes it."""
        return [kept or producer < 0 or self.pinned[producer] for kept, producer in zip(self.kept, self.producer)]


@dataclass(frozen=True, slots=True)
class Order:
    """Every operator once: the forward, then the backward."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def is_pinned(op: Op) -> bool:
    """Whether a plan may execute `op` only once: it may not be repeated, or its results must be saved."""
    return bool(op.no_recompute) or op.save_policy is SavePolicy.MUST_SAVE


def baseline_order(index: StepIndex, placement: Placement) -> Order:
    """Forward and backward in joint order, tangent-free operators by `placement`.

    Tangent-free operators whose results nobody reads are left out, or run last if they are demanded.
    """
    lazy = lazy_order(index, [i for i, phase in enumerate(index.phase) if phase is Phase.BACKWARD])
    if placement is Placement.LAZY:
        return lazy
    last = max((i for i, phase in enumerate(index.phase) if phase is Phase.FORWARD), default=-1)
    # Up to the last forward operator the joint order can be kept: later, the backward has begun.
    early = _placed_early(index, last)
    forward = tuple(i for i in range(last + 1) if index.phase[i] is Phase.FORWARD or early[i])
    needed = set(lazy.backward)
    ahead = set(forward)
    # The lazy order is asked only which operators are needed at all: it leaves out those that nobody reads.
    backward = (i for i in range(len(index.phase)) if i not in ahead and i in needed)
    return Order(forward, tuple(backward))


def _placed_early(index: StepIndex, last: int) -> list[bool]:
    """For each operator, whether it is tangent-free and can run in the forward, up to operator `last`."""
    early = [False] * len(index.phase)
    for i in range(last + 1):
        if index.phase[i] is Phase.TANGENT_FREE and not any(index.unsavable[s] for s in index.writes[i]):
            # An unsavable result must not cross the boundary; and a source that stays in the backward keeps its
            # reader there.
            sources = [index.producer[s] for s in index.reads[i]]
            early[i] = all(early[p] or index.phase[p] is Phase.FORWARD for p in sources)
    return early


def lazy_order(index: StepIndex, tasks: Sequence[int]) -> Order:
    """The forward, then `tasks`, with other tangent-free operators just before the first that reads their results."""
    placed = [phase is not Phase.TANGENT_FREE for phase in index.phase]
    for i in tasks:
        placed[i] = True
    backward: list[int] = []
    for i in tasks:
        backward += [*_unplaced(index, index.reads[i], placed), i]
    for i, phase in enumerate(index.phase):
        # Nobody reads these, but the caller holds a result or they have an effect: they run last.
        if phase is Phase.TANGENT_FREE and index.demanded[i] and not placed[i]:
            backward += [*_unplaced(index, index.reads[i], placed), i]
            placed[i] = True
    forward = tuple(i for i, phase in enumerate(index.phase) if phase is Phase.FORWARD)
    return Order(forward, tuple(backward))


def _unplaced(index: StepIndex, wanted: Iterable[int], placed: list[bool]) -> list[int]:
    """Unplaced operators that `wanted` depends on, in joint order; marks them as placed."""
    found: list[int] = []
    stack = [index.producer[s] for s in wanted]
    while stack:
        i = stack.pop()
        if i >= 0 and not placed[i]:
            placed[i] = True
            found.append(i)
            stack += [index.producer[s] for s in index.reads[i]]
    # Operator numbers follow the joint order, which puts makers before readers.
    return sorted(found)


def recompute_closure(index: StepIndex, wanted: Iterable[int], at_hand: Sequence[bool]) -> list[int]:
    """Operators to execute, in order, so that all `wanted` storages are available.

    Args:
        index: The graph.
        wanted: Storages, some of which may be available already.
        at_hand: For each storage, whether an instance that may be read is alive.  Results of pinned
            operators and kept storages must be, see `StepIndex.always_at_hand`.
    """
    found: set[int] = set()
    stack = [s for s in wanted if not at_hand[s]]
    while stack:
        producer = index.producer[stack.pop()]
        if producer not in found:
            found.add(producer)
            stack += [s for s in index.reads[producer] if not at_hand[s]]
    return sorted(found)


def recompute(index: StepIndex, order: Order, saved: Sequence[bool], stages: Sequence[int] | None = None) -> Plan:
    """The plan that saves `saved` and recomputes whatever else the backward reads.

    Args:
        index: The graph.
        order: Each operator once.
        saved: For each storage, whether the backward may read the forward's instance.  Kept storages and
            results of pinned operators may be read in any case; unsavable ones never.
        stages: A number for each operator of `order.backward`.  Missing inputs of a run of equal numbers are
            recomputed together, ahead of the run.  `None` means just before each operator, as is always done
            for unsavable storages.
    """
    always = index.always_at_hand()
    # Whatever `saved` says, unsavable values are recomputed.
    at_hand = [a or (s and not u) for a, s, u in zip(always, saved, index.unsavable)]
    for i in order.backward:
        for s in index.writes[i]:
            at_hand[s] = True  # made by the order itself, before anything reads it
    steps = list(order.forward)

    def make(wanted: Iterable[int]) -> None:
        again = recompute_closure(index, wanted, at_hand)
        steps.extend(again)
        # A repeated result serves every later read as well; its life ends with the last of them.
        for i in again:
            for s in index.writes[i]:
                at_hand[s] = True

    tagged = any(index.unsavable)
    for start, stop in _runs(len(order.backward), stages):
        run = order.backward[start:stop]
        make([s for i in run for s in index.reads[i] if not index.unsavable[s]])
        # No unsavable input: everything that the run reads is available by now.
        if not tagged:
            steps.extend(run)
            continue
        for i in run:
            make(index.reads[i])
            steps.append(i)
    return drop_dead_repeats(index, Plan(tuple(map(OpId, steps)), len(order.forward)))


def _runs(length: int, stages: Sequence[int] | None) -> list[tuple[int, int]]:
    """Half-open runs of equal stage."""
    if stages is None:
        return [(i, i + 1) for i in range(length)]
    starts = [i for i in range(length) if i == 0 or stages[i] != stages[i - 1]]
    return list(zip(starts, [*starts[1:], length]))


def drop_dead_repeats(index: StepIndex, plan: Plan) -> Plan:
    """`plan` without executions that nobody needs, by one sweep from the end.

    The first execution of an operator stays unless it is not demanded: a later one then takes its place.
    Sloppy generators are safe: repeat a whole segment, then drop.
    """
    first: dict[int, int] = {}
    for step, i in enumerate(plan.steps):
        first.setdefault(i, step)
    needed = [False] * len(index.producer)
    steps: list[OpId] = []
    boundary = plan.boundary
    for step in range(len(plan.steps) - 1, -1, -1):
        i = plan.steps[step]
        # The second condition keeps an execution whose result is read before a later one replaces it.
        if not (first[i] == step and index.demanded[i]) and not any(needed[s] for s in index.writes[i]):
            # A bool counts as 0 or 1: the boundary moves by the executions dropped before it.
            boundary -= step < plan.boundary
            continue
        # Before this execution, nobody needs another instance of its results for the reads that follow.
        for s in index.writes[i]:
            needed[s] = False
        for s in index.reads[i]:
            needed[s] = not index.kept[s]  # every read of a kept storage means the first instance
        steps.append(i)
    return Plan(tuple(reversed(steps)), boundary)
