"""The forward of DELTA: which values are released while it fills the memory, and how (Algorithms 1 to 3)."""

from __future__ import annotations

import numpy as np

from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE
from remat_passes.policies.space import PolicySpace
from remat_passes.sequences.profile import IntArray
from remat_passes.sequences.sequence import recompute_closure

FILTERS = ("base", "lru", "greedy")
"""The Filter's heuristics (equations 1, 2 and 3): of the values on the device the one of least H is released first.

    base    H = 1 / (bytes * staleness)
    lru     H = 1 / staleness
    greedy  H = 1 / bytes
"""


class DeltaForward:
    """One simulated forward; call `run` once.

    Args:
        space: The values that may be released, in an order of the step.
        heuristic: One of `FILTERS`.
        start: Part of the budget in use at which the release starts.
        bandwidth_share: Part of the bandwidth that the Director counts on.
    """

    def __init__(self, space: PolicySpace, heuristic: str, start: float, bandwidth_share: float) -> None:
        self.space, self.heuristic = space, heuristic
        self.limit_bytes = int(start * space.problem.budget_bytes)
        self.actions = space.all_of(KEEP)
        self.value_of = {int(s): v for v, s in enumerate(space.policies.values)}
        sizes = space.index.size_bytes
        self.bytes = np.array([sizes[s] for s in self.value_of], np.int64)
        link = space.problem.costs.links[0] if space.problem.moves else None
        # Out and back, each over the part of the bandwidth that is there to use.
        one_way = np.zeros(len(self.bytes)) if link is None else self.bytes * (1e9 / bandwidth_share)
        self.copy_ns = one_way if link is None else one_way / link.out_bytes_per_s + one_way / link.back_bytes_per_s
        self.touched_ns = np.zeros(len(self.bytes), np.int64)
        self.on_device = np.zeros(len(self.bytes), np.bool_)
        self.left_bytes = space.policies.room_bytes
        self.at_hand = [s or a for s, a in zip(space.index.all_savable(), space.index.always_at_hand())]

    def run(self) -> IntArray:
        """The policy: released values are recomputed or moved."""
        index, forward = self.space.index, self.space.order.forward
        last = {s: step for step, op in enumerate(forward) for s in (*index.reads[op], *index.writes[op])}
        clock_ns = live_bytes = 0
        for step, op in enumerate(forward):
            live_bytes += sum(index.size_bytes[s] for s in index.writes[op])
            clock_ns += self.space.problem.costs.time_ns[op]
            for s in (*index.reads[op], *index.writes[op]):
                value = self.value_of.get(s)
                if value is not None:
                    self.touched_ns[value] = clock_ns
                    # Free to be released once the forward is done with it.
                    self.on_device[value] = last[s] == step
                elif last[s] == step and not index.kept[s]:
                    live_bytes -= index.size_bytes[s]
            while live_bytes > self.limit_bytes:
                released = self._release(clock_ns)
                if released is None:
                    break
                live_bytes -= int(self.bytes[released])
        return self.actions

    def _release(self, clock_ns: int) -> int | None:
        """Release the value that the Filter names; `None` if there is none."""
        stale = np.maximum(clock_ns - self.touched_ns, 1).astype(np.float64)
        size = self.bytes.astype(np.float64)
        weight = {"base": size * stale, "lru": stale, "greedy": size}[self.heuristic]
        weight = np.where(self.on_device, weight, -1.0)
        while len(weight) and weight.max() > 0:
            # The least H is the largest weight.
            value = int(np.argmax(weight))
            action = self._direct(value)
            if action != KEEP:
                self.actions[value] = action
                self.on_device[value] = False
                return value
            weight[value] = -1.0
        return None

    def _direct(self, value: int) -> int:
        """The Director: recompute if h_r / h_o = recomputation time / copy time is at most 1, else move."""
        policies = self.space.policies
        storage = int(policies.values[value])
        fits = int(policies.pages_bytes[storage]) <= self.left_bytes
        may_move = bool(policies.allowed[value, MOVE]) and fits
        action = MOVE if may_move else KEEP
        if policies.allowed[value, RECOMPUTE]:
            self.at_hand[storage] = False
            # c_r counts the neighbours that were evicted, which would have to be made again with it.
            again = recompute_closure(self.space.index, [storage], self.at_hand)
            again_ns = sum(self.space.problem.costs.time_ns[op] for op in again)
            if not may_move or again_ns <= self.copy_ns[value]:
                action = RECOMPUTE
            else:
                self.at_hand[storage] = True
        if action == MOVE:
            self.left_bytes -= int(policies.pages_bytes[storage])
        return action
