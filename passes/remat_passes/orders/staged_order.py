"""Orders of the backward to plan recomputation on, before it is known which values a plan saves.

The joint order runs each operator of the backward where autograd put it.  With little memory, values of the forward are
recomputed when they are read, and another order needs fewer bytes.  What decides are the backward's own values, and the
values of the forward that an operator reads at its step:

    stage 1 of the backward | stage 0      a forward value of stage 1 costs its readers in stage 1 only their own step;
          b3 w3 b2 w2       | b1 w1 b0 w0  once stage 0 has begun, it is alive until its last reader has run

So a reader that waits for a later stage (the gradient of a large weight, say) pays for the value that it will read: a
plan would have to hold the value, or to recompute it from far away.  Few, long stages lower the peak further, and cost
more time.  `separator` then finds the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import Phase
from remat_passes.orders.order_backward import MAX_TURNS
from remat_passes.orders.separator import Tasks, lower_peak
from remat_passes.orders.tasks import FIXED, FREE, behind
from remat_passes.sequences.profile import WORKSPACE, Arrays, IntArray
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, lazy_order

STAGE_COUNTS = (2, 12)
"""Numbers of stages that are tried, one order each."""


def staged_orders(g: Arrays, index: StepIndex, freedom: IntArray) -> list[Order]:
    """Orders for each of `STAGE_COUNTS` that differ from the joint order and from each other."""
    joint = baseline_order(index, Placement.LAZY)
    found = [joint]
    for count in STAGE_COUNTS:
        order = _Stages.of(index, joint, count).order(g, index, freedom)
        if order not in found:
            found.append(order)
    return found[1:]


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """A forward in stages, and the backward that follows from it.

    Attributes:
        tasks: Operators of the backward that run once.
        place: Position in `tasks` of each operator, or -1.
        stage: Stage of each storage that may be recomputed in the backward, else -1.
        ended: For each stage, the position in `tasks` of an operator that runs after it, -1 if there is none.
    """

    tasks: list[int]
    place: list[int]
    stage: list[int]
    ended: list[int]

    @staticmethod
    def of(index: StepIndex, joint: Order, count: int) -> _Stages:
        """`joint` in `count` stages of about equal bytes."""
        repeatable = [phase is not Phase.BACKWARD and not pin for phase, pin in zip(index.phase, index.pinned)]
        tasks = [i for i in joint.backward if not repeatable[i]]
        place = [-1] * len(index.phase)
        for k, i in enumerate(tasks):
            place[i] = k
        made = [sum(index.size_bytes[s] for s in index.writes[i]) for i in joint.forward]
        # Bytes made before each operator, in parts of all bytes: the number of its stage.
        starts = np.cumsum([0, *made]) * count // max(sum(made), 1)
        stage = [-1] * len(index.producer)
        for i, now in zip(joint.forward, starts.tolist()):
            for s in index.writes[i]:
                if repeatable[i] and not index.kept[s]:
                    stage[s] = min(now, count - 1)
        for i in joint.backward:
            # A tangent-free result can be recomputed as soon as the latest stage that it reads is available.
            if repeatable[i]:
                for s in index.writes[i]:
                    stage[s] = -1 if index.kept[s] else max((stage[r] for r in index.reads[i]), default=0)
        return _Stages(tasks, place, stage, _find_ends(index, tasks, stage, count))

    def order(self, g: Arrays, index: StepIndex, freedom: IntArray) -> Order:
        """Each operator once, the tasks in an order of low peak."""
        order, _, _ = lower_peak(self._as_tasks(g, index, freedom), np.arange(len(self.tasks)), 0, MAX_TURNS)
        return lazy_order(index, [self.tasks[k] for k in order.tolist()])

    def _as_tasks(self, g: Arrays, index: StepIndex, freedom: IntArray) -> Tasks:
        """The tasks and their values, those of the forward as the module docstring says."""
        # Start with workspaces; below, each task adds the recomputed values that it reads, at its own step alone.
        own = g.ops[self.tasks, WORKSPACE]
        made_at = np.array([-1 if producer < 0 else self.place[producer] for producer in index.producer], np.int64)
        reads = [(s, k) for k, i in enumerate(self.tasks) for s in index.reads[i]]
        counted = np.array(index.size_bytes, np.int64)
        outputs = np.array(index.kept, np.bool_) & (made_at < 0)
        # Alive throughout, in any order: tangents, and what the forward returns.
        base = g.tangent_bytes + int(counted[outputs].sum())
        counted[outputs] = 0
        for s, k in reads:
            if self.stage[s] >= 0:
                own[k] += counted[s]
        for s in sorted({s for s, _ in reads if self.stage[s] >= 0}):
            end = self.ended[self.stage[s]]
            # After the end of its stage the value has to be held: as if the task that ends the stage made it.
            made_at[s] = end
            if end < 0:
                counted[s] = 0  # no later stage, in which somebody would have to hold it
            else:
                own[end] -= counted[s]  # alive only after that step, and if anybody still reads it
        tied = [k for k, i in enumerate(self.tasks) if freedom[i] != FREE]
        sources = self._sources(index)
        # A task depends on others also through tangent-free operators, which are no tasks.
        edges = [(k, source) for s, k in reads for source in sources[s]]
        value, read_at = _columns(reads)
        later, earlier = _columns([*edges, *zip(tied[1:], tied)])
        fixed, kept = freedom[self.tasks] == FIXED, np.array(index.kept, np.bool_)
        return behind(0, own, fixed, counted, made_at, kept, value, read_at, later, earlier, base)

    def _sources(self, index: StepIndex) -> list[list[int]]:
        """For each storage, the task that makes it, or the tasks that make the inputs of its recomputation."""
        sources: list[list[int]] = [[] for _ in index.producer]
        for i, place in enumerate(self.place):
            found = [place] if place >= 0 else sorted({k for s in index.reads[i] for k in sources[s]})
            for s in index.writes[i]:
                sources[s] = found
        return sources


def _find_ends(index: StepIndex, tasks: list[int], stage: list[int], count: int) -> list[int]:
    """See `_Stages.ended`: of the tasks of the next lower stage, the one on the longest way to the end."""
    now, lowest = [0] * len(tasks), -1
    for k in range(len(tasks) - 1, -1, -1):
        # The stage of a task is the highest that is read from there on, so stages only fall (see `chains.chain`).
        lowest = max([lowest, *(stage[s] for s in index.reads[tasks[k]])])
        now[k] = lowest
    # Tasks on the longest way to the end, which no order can put off for long, stand for the end of a stage.
    way, depth = [0] * len(tasks), [0] * len(index.producer)
    for k in range(len(tasks) - 1, -1, -1):
        way[k] = 1 + max((depth[s] for s in index.writes[tasks[k]]), default=0)
        for s in index.reads[tasks[k]]:
            depth[s] = max(depth[s], way[k])
    best: dict[int, int] = {}
    for k, at in enumerate(now):
        if at not in best or way[k] > way[best[at]]:
            best[at] = k
    ended, lower = [], -1
    for at in range(-1, count):
        if at >= 0:
            ended.append(lower)
        lower = best.get(at, lower)
    return ended


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    """Pairs as two arrays."""
    table = np.array(list(pairs), np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()
