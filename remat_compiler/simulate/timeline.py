"""Simulate a plan: live bytes at every step, their peak, and the time of the step.

The one definition of peak in this project.  A step allocates its results (and its workspace) before
anything that it reads is freed, so at step ``t``

    live[t] = sum of size_bytes over instances with start <= t <= last_use  +  workspace_bytes[t]

Tangents appear at the boundary and stay to the end, since autograd holds them while the backward runs.  A repetition
that replays a random state also holds the generator's own state, to restore it afterwards: as many bytes again.
While a transfer keeps an instance off the device, its bytes do not count.  An instance that was off the device lies in
memory that no result takes over (`CostTable.workspace_bytes` below 0).

The added time of a plan is its time less that of executing each of its operators once: what operators that repeat take,
and what it waits for copies and is slowed down by them (`transfers`).
Vectorised over numpy: a plan of 8,000 steps takes about 2 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan, PlanResult, Transfer
from remat_compiler.ir.problem import CostTable
from remat_compiler.simulate.arrays import GraphArrays, IntArray, expand
from remat_compiler.simulate.transfers import transfer_times


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """Life of every instance that a plan makes, ordered by storage, then start.

    Attributes:
        storage: Storage of each instance.
        start: Step that makes it.
        last: Step of its last use (inclusive); the last step of the plan for a kept first instance.
    """

    storage: IntArray
    start: IntArray
    last: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTimeline:
    """Result of one simulation.

    Attributes:
        live_bytes: Live bytes at every step, workspace included.
        instances: Lives of all instances.
        boundary: First step of the backward.
        peak_bytes: Largest of `live_bytes`.
        peak_step: First step that reaches it.
        saved_bytes: Bytes alive on the device between forward and backward.
        time_ns: Time of the step.
        added_ns: The part of it that goes into executing operators again, waiting for copies, and being slowed down by
            them.
        stall_ns: The part of it that goes into waiting for copies.
        transfers: Instances that are off the device in some of the steps.
    """

    live_bytes: IntArray
    instances: Instances
    boundary: int
    peak_bytes: int
    peak_step: int
    saved_bytes: int
    time_ns: int
    added_ns: int
    stall_ns: int = 0
    transfers: tuple[Transfer, ...] = ()

    def answer(self, result: PlanResult, plan: Plan) -> PlanResult:
        """`result` with `plan`, of which this is the simulation, in place of its own."""
        return replace(result, plan=plan, peak_bytes=self.peak_bytes, time_ns=self.time_ns, added_ns=self.added_ns)

    def live_at(self, step: int) -> list[int]:
        """Storages with an instance alive on the device at `step`, ascending; listed twice if two instances are alive.

        Residents and tangents have no instances and are not listed.
        """
        alive = (self.instances.start <= step) & (self.instances.last >= step)
        away = {one.storage for one in self.transfers if one.out_after <= step < one.back_before}
        return [int(s) for s in self.instances.storage[alive] if s not in away]


def simulate(graph: TrainingGraph, costs: CostTable, plan: Plan) -> MemoryTimeline:
    """Simulate `plan`; see the module docstring for the model.  The plan must be valid (see `verify`)."""
    return simulate_arrays(GraphArrays.of(graph, costs), np.array(plan.steps, np.int64), plan.boundary, plan.transfers)


def simulate_arrays(
    arrays: GraphArrays, steps: IntArray, boundary: int, transfers: Sequence[Transfer] = ()
) -> MemoryTimeline:
    """`simulate` on prepared arrays, for planners that evaluate many plans of one graph."""
    n = len(steps)
    # Each instance adds its bytes at its start and takes them back one step after its last use; a running sum gives the
    # live bytes.  The slot after the last step is for instances that live to the end.
    instances = find_instances(arrays, steps)
    delta = np.zeros(n + 1, np.int64)
    size = arrays.size_bytes[instances.storage]
    # Unbuffered (`.at`), since several instances may start or end at one step.
    np.add.at(delta, instances.start, size)
    np.subtract.at(delta, instances.last + 1, size)
    # With an empty backward the tangents fall into the slot that is cut off.
    delta[min(boundary, n)] += arrays.tangent_bytes
    away_between = 0
    # The copy out is complete before step `out_after`, and the memory is taken again before `back_before`.
    for one in transfers:
        moved = int(arrays.size_bytes[one.storage])
        delta[one.out_after] -= moved
        delta[one.back_before] += moved
        away_between += moved if one.out_after <= boundary < one.back_before else 0
    live = np.cumsum(delta[:-1])
    crossing = (instances.start < boundary) & (instances.last >= boundary)
    # Added after the running sum, because both last for their own step only.
    workspace = arrays.workspace_bytes[steps] + _not_taken_over(arrays, steps, instances, transfers)
    live = live + workspace + _returned_state_bytes(arrays, steps)
    peak_step = int(np.argmax(live)) if n else 0
    time_ns, stall_ns = int(arrays.time_ns[steps].sum()), 0
    if transfers:
        beside = transfer_times(arrays, steps, boundary, transfers)
        time_ns, stall_ns = beside.time_ns, beside.stall_ns
    # Operators that the plan leaves out count in neither sum, so added time is repetition and waiting alone.
    once = int(arrays.time_ns[np.unique(steps)].sum())
    return MemoryTimeline(
        live_bytes=live,
        instances=instances,
        boundary=boundary,
        peak_bytes=int(live[peak_step]) if n else 0,
        peak_step=peak_step,
        saved_bytes=int(size[crossing].sum()) - away_between,
        time_ns=time_ns,
        added_ns=time_ns - once,
        stall_ns=stall_ns,
        transfers=tuple(transfers),
    )


def find_instances(arrays: GraphArrays, steps: IntArray) -> Instances:
    """Lives of all instances that executing `steps` makes."""
    n = len(steps)
    repeated = _is_repeat(steps, len(arrays.time_ns))
    w_pos, w_sto = expand(arrays.write_start, arrays.write_items, steps)
    r_pos, r_sto = expand(arrays.read_start, arrays.read_items, steps)
    # A random state is an instance only if a repetition replays it: the first execution makes it, later ones read it.
    replay = arrays.replay[steps]
    if (replay >= 0).any():
        needed = np.isin(replay, replay[repeated & (replay >= 0)]) & (replay >= 0)
        first, again = np.flatnonzero(needed & ~repeated), np.flatnonzero(needed & repeated)
        w_pos, w_sto = np.concatenate([w_pos, first]), np.concatenate([w_sto, replay[first]])
        r_pos, r_sto = np.concatenate([r_pos, again]), np.concatenate([r_sto, replay[again]])
    # Every read of a kept storage means its first instance, which lives to the end whoever reads it.
    kept_read = arrays.kept[r_sto]
    r_pos, r_sto = r_pos[~kept_read], r_sto[~kept_read]
    # The key sorts by storage, then step.  A read at the step that also writes the storage means the instance before,
    # so reads sort first.
    key_w = (w_sto * n + w_pos) * 2 + 1
    order = np.argsort(key_w, kind="stable")
    w_pos, w_sto, key_w = w_pos[order], w_sto[order], key_w[order]
    last = w_pos.copy()  # a result that nobody reads lives for the step that makes it
    # The instance that a read means is the last write of its storage with a smaller key.
    owner = np.searchsorted(key_w, (r_sto * n + r_pos) * 2) - 1
    np.maximum.at(last, owner, r_pos)
    # The caller holds the first instance of a kept storage; a repetition is a copy that is freed at once.
    first_of_storage = np.ones(len(w_sto), np.bool_)
    first_of_storage[1:] = w_sto[1:] != w_sto[:-1]
    last[first_of_storage & arrays.kept[w_sto]] = max(n - 1, 0)
    return Instances(storage=w_sto, start=w_pos, last=last)


def _not_taken_over(
    arrays: GraphArrays, steps: IntArray, instances: Instances, transfers: Sequence[Transfer]
) -> IntArray:
    """At each step, bytes that its result would take over from an argument, if that had not been off the device."""
    found = np.zeros(len(steps), np.int64)
    moved: dict[int, list[Transfer]] = {}
    for one in transfers:
        moved.setdefault(int(one.storage), []).append(one)
    # Instances are in the order of their storages, and then of their starts.
    n = len(steps) + 1
    key = instances.storage * n + instances.start
    for step in np.flatnonzero(arrays.workspace_bytes[steps] < 0).tolist() if moved else ():
        op = steps[step]
        result_bytes = arrays.size_bytes[arrays.write_items[arrays.write_start[op]]]
        reads = arrays.read_items[arrays.read_start[op] : arrays.read_start[op + 1]].tolist()
        alike = [s for s in reads if s in moved and arrays.size_bytes[s] == result_bytes]
        read = np.searchsorted(key, np.array(alike, np.int64) * n + step) - 1
        # Another argument of the size may end here too, but need not serve as well.
        if any(_was_away(instances, i, s, step, moved[s]) for i, s in zip(read.tolist(), alike)):
            found[step] = result_bytes
    return found


def _was_away(instances: Instances, i: int, storage: int, step: int, transfers: Sequence[Transfer]) -> bool:
    """Whether instance `i` is one of this storage that ends at `step`, and has been off the device by then."""
    if i < 0 or instances.storage[i] != storage or instances.last[i] != step:
        return False
    return any(instances.start[i] < one.out_after and one.back_before <= step for one in transfers)


def _is_repeat(steps: IntArray, num_ops: int) -> npt.NDArray[np.bool_]:
    """Whether each step executes an operator that an earlier step executed."""
    first = np.full(num_ops, len(steps), np.int64)
    np.minimum.at(first, steps, np.arange(len(steps)))
    return np.asarray(first[steps] != np.arange(len(steps)))


def _returned_state_bytes(arrays: GraphArrays, steps: IntArray) -> IntArray:
    """At each step that replays a random state, the bytes of the generator's own state, held to be restored."""
    replay = arrays.replay[steps]
    if not (replay >= 0).any():
        return np.zeros(len(steps), np.int64)
    # Operators without a state have replay -1 and pick an arbitrary size here, which the condition discards.
    return np.where(_is_repeat(steps, len(arrays.time_ns)) & (replay >= 0), arrays.size_bytes[replay], 0)
