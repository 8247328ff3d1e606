"""Valid plans at random: what is evicted, how often it is made again, and where tangent-free operators stand."""

from __future__ import annotations

from random import Random

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, StorageId, TrainingGraph
from remat_compiler.ir.plan import Plan


def random_plan(graph: TrainingGraph, random: Random) -> Plan:
    """A valid plan of `graph`; nothing about it is good."""
    return _Drawing(graph, random).plan()


class _Drawing:
    """Mutable state of one plan while it is written down."""

    def __init__(self, graph: TrainingGraph, random: Random) -> None:
        self.graph = graph
        self.random = random
        self.producers = graph.producers()
        self.eviction = random.choice((0.0, 0.3, 0.6, 1.0, 1.0))
        self.forgetting = random.choice((0.0, 0.1, 0.5, 1.0))
        self.early = random.choice((0.0, 0.5, 1.0))
        self.steps: list[OpId] = []
        self.done: set[OpId] = set()
        self.at_hand: set[StorageId] = set()

    def plan(self) -> Plan:
        for op in self.graph.ops:
            if op.phase is Phase.FORWARD or (op.phase is Phase.TANGENT_FREE and self._runs_early(op)):
                self._append(op)
                self._repeat_something(op)
        boundary = len(self.steps)
        evicted = {s for op in self.graph.ops if op.id in self.done for s in op.writes if self._evicts(op)}
        self.at_hand = {s for op in self.graph.ops if op.id in self.done for s in op.writes} - evicted
        for op in self.graph.ops:
            if op.phase is Phase.BACKWARD or (op.id not in self.done and self._is_demanded(op)):
                self._run(op)
                if self.random.random() < self.forgetting:
                    self._forget()
        return _without_dead_repeats(self.graph, Plan(tuple(self.steps), boundary))

    def _append(self, op: Op) -> None:
        self.steps.append(op.id)
        self.done.add(op.id)
        self.at_hand.update(op.writes)

    def _run(self, op: Op) -> None:
        """Execute `op`, and before it whatever it reads that is not at hand."""
        for storage in op.reads:
            producer = self.producers[storage]
            if producer is not None and storage not in self.at_hand:
                self._run(self.graph.ops[producer])
        self._append(op)

    def _runs_early(self, op: Op) -> bool:
        if op.save_policy is SavePolicy.MUST_NOT_SAVE:
            return False
        inputs = [self.producers[s] for s in op.reads]
        return all(p is None or p in self.done for p in inputs) and self.random.random() < self.early

    def _repeat_something(self, latest: Op) -> None:
        """Now and then, make something again although it is still there."""
        if self.random.random() < 0.05:
            op = self.graph.ops[self.random.choice(self.steps)]
            if op.may_recompute and op.save_policy is not SavePolicy.MUST_SAVE and op is not latest:
                self._append(op)

    def _is_demanded(self, op: Op) -> bool:
        """Whether a tangent-free operator has to run although nobody reads its results."""
        return not op.writes or any(self.graph.storages[s].kept for s in op.writes)

    def _evicts(self, op: Op) -> bool:
        if not op.may_recompute or op.save_policy is SavePolicy.MUST_SAVE:
            return False
        if any(self.graph.storages[s].kept for s in op.writes):
            return False
        return op.save_policy is SavePolicy.MUST_NOT_SAVE or self.random.random() < self.eviction

    def _forget(self) -> None:
        """Drop some of what could be made again."""
        for op in self.graph.ops:
            if op.phase is not Phase.BACKWARD and op.id in self.done and self._evicts(op):
                self.at_hand.difference_update(op.writes)


def _without_dead_repeats(graph: TrainingGraph, plan: Plan) -> Plan:
    """The plan without repetitions that nobody reads: the removal of dead code would drop them."""
    first = {op: step for step, op in reversed(list(enumerate(plan.steps)))}
    needed: set[StorageId] = set()
    live: list[int] = []
    for step in reversed(range(len(plan.steps))):
        op = graph.ops[plan.steps[step]]
        if first[op.id] == step or not needed.isdisjoint(op.writes):
            live.append(step)
            needed.difference_update(op.writes)
            needed.update(s for s in op.reads if not graph.storages[s].kept)
    live.reverse()
    return Plan(tuple(plan.steps[i] for i in live), sum(i < plan.boundary for i in live))
