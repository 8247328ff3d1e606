"""The layers of a linearised chain as rotor sees them: times, states, inner values and local peaks.

    forward    | layer 0 | layer 1 | ... |        the state before layer k: values made before it and read by it,
    backward           ... | back of 1 | back of 0 |   its backward, or later layers

An operator of the backward belongs to the latest layer whose state and inner values hold all that it reads, as long as
layers only fall; a value that an earlier operator of the backward has read is still available.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.chains.chain import Forward
from remat_passes.sequences.profile import IntArray
from remat_passes.sequences.sequence import Order, StepIndex, recompute, recompute_closure

COMPUTED = ("run_ns", "again_ns", "inner", "run_peak", "keep_peak", "back_peak", "single_peak")
"""Fields of `RotorLayers` that are found layer by layer."""


@dataclass(frozen=True, slots=True, eq=False)
class RotorLayers:
    """`count` layers; bytes and nanoseconds.  The bytes that a layer *needs* are beyond the state before it.

    Attributes:
        count: Number of layers.
        forward: Operators of each layer.
        backward: Operators of the backward of each layer.
        run_ns: Time to run each layer.
        again_ns: Time to recompute the values of each layer that its backward reads.
        state: ``[i, k]``: bytes of the state before layer `k` that are not in that of layer ``i < k``.
        inner: Bytes that the backward of each layer reads of it and that are in no state.
        run_peak: Bytes that running each layer needs.
        keep_peak: The same if the inner values stay.
        back_peak: Bytes that the backward of each layer needs if the values it reads are alive; gradients included.
        single_peak: The same if the values of the layer that it reads are recomputed before it.
        own: Bytes that the backward itself holds (gradients, tangents) before the backward of each layer.
    """

    count: int
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    run_ns: IntArray
    again_ns: IntArray
    state: IntArray
    inner: IntArray
    run_peak: IntArray
    keep_peak: IntArray
    back_peak: IntArray
    single_peak: IntArray
    own: IntArray

    @property
    def enough_bytes(self) -> int:
        """Bytes that suffice to keep all values of every layer."""
        peaks = (self.run_peak, self.keep_peak, self.back_peak, self.single_peak)
        return int(self.inner.sum() + self.state[0].sum() + sum(peak.max() for peak in peaks) + self.own.max())


def layers_of(
    problem: RematProblem, index: StepIndex, order: Order, forward: Forward, cuts: Sequence[int]
) -> RotorLayers:
    """The layers between `cuts`, positions in the forward.

    Args:
        problem: The problem.
        index: Its graph.
        order: Each operator once; its forward must be that of `forward`.
        forward: The forward as a line.
        cuts: Ends of all layers but the last.
    """
    count = len(cuts) + 1
    made = [-1 if at < 0 else bisect_right(cuts, at) for at in forward.made_at]
    last = [-1 if at < 0 else bisect_right(cuts, max(at, read)) for at, read in zip(forward.made_at, forward.last_read)]
    backward, wanted = _backward(index, order, made, last, count)
    ops = [forward.ops[a:b] for a, b in zip((0, *cuts), (*cuts, len(forward.ops)))]
    own, ahead = _own_bytes(problem, index, order, made, backward)
    rows: dict[str, list[int]] = {name: [0] * count for name in COMPUTED}
    time_ns, position = problem.costs.time_ns, 0
    for k in reversed(range(count)):
        # Values in later states stay alive in any case; those read by the backward alone are the layer's own price.
        crossing = {s for i in ops[k] for s in index.writes[i] if made[s] == k and last[s] > k}
        inside = {s for s in wanted[k] if last[s] <= k}
        # Values of other layers count as available: states provide them.
        again = recompute_closure(index, sorted(wanted[k]), [at != k for at in made])
        beside = own[position : position + len(backward[k])]
        position += len(beside)
        back = _back_peak(index, backward[k], wanted[k], beside)
        rows["run_ns"][k] = sum(time_ns[i] for i in ops[k])
        rows["again_ns"][k] = sum(time_ns[i] for i in again)
        rows["inner"][k] = sum(index.size_bytes[s] for s in inside)
        rows["run_peak"][k] = _run_peak(problem, index, made, ops[k], k, crossing)
        rows["keep_peak"][k] = _run_peak(problem, index, made, ops[k], k, crossing | inside)
        rows["back_peak"][k] = back
        rows["single_peak"][k] = max(back, _run_peak(problem, index, made, again, k, wanted[k]) + int(ahead[k]))
    return RotorLayers(
        count=count,
        forward=tuple(map(tuple, ops)),
        backward=tuple(map(tuple, backward)),
        state=_states(index, made, last, count),
        own=ahead,
        **{name: np.array(row, np.int64) for name, row in rows.items()},
    )


def _backward(
    index: StepIndex, order: Order, made: list[int], last: list[int], count: int
) -> tuple[list[list[int]], list[set[int]]]:
    """Operators of the backward of each layer, and its values that they read; extends `last` to those reads."""
    # The first reader calls for a value; it stays alive for the others.
    seen = [at < 0 for at in made]
    first_reads = []
    for i in order.backward:
        first_reads.append([s for s in index.reads[i] if not seen[s]])
        for s in index.reads[i]:
            seen[s] = True
    # A layer below the largest one still to be read from would have to rise again.
    least = list(accumulate(reversed([max((made[s] for s in new), default=0) for new in first_reads]), max))[::-1]
    backward: list[list[int]] = [[] for _ in range(count)]
    wanted: list[set[int]] = [set() for _ in range(count)]
    layer = count - 1
    for i, low, new in zip(order.backward, least, first_reads):
        # Not after the last layer that has the values in its state, not before `low`, and never rising.
        layer = min(layer, max(low, min((last[s] for s in new), default=count - 1)))
        backward[layer].append(i)
        for s in new:
            # Read by the backward of `layer`, so the states of the layers up to there hold it.
            last[s] = max(last[s], layer)
            if made[s] == layer:
                wanted[layer].add(s)
    return backward, wanted


def _own_bytes(
    problem: RematProblem, index: StepIndex, order: Order, made: Sequence[int], backward: Sequence[Sequence[int]]
) -> tuple[IntArray, IntArray]:
    """Live bytes without the forward's values: at each operator of the backward, and before that of each layer."""
    # With everything saved the rest is the backward's own: gradients, tangents, workspaces, random states.
    plan = recompute(index, order, index.all_savable())
    line = simulate(problem.graph, problem.costs, plan)
    lives, size = line.instances, np.array(index.size_bytes, np.int64)
    managed = np.array(made, np.int64)[lives.storage] >= 0
    delta = np.zeros(len(plan.steps) + 1, np.int64)
    np.add.at(delta, lives.start[managed], size[lives.storage[managed]])
    np.subtract.at(delta, lives.last[managed] + 1, size[lives.storage[managed]])
    own = (line.live_bytes - np.cumsum(delta)[:-1])[plan.boundary :]
    tangents = sum(s.size_bytes for s in problem.graph.storages if s.kind is StorageKind.TANGENT)
    ahead, position = np.zeros(len(backward), np.int64), plan.boundary
    for k in reversed(range(len(backward))):
        # Alive over the start of the layer's backward: made before it and used in it or later.
        across = ~managed & (lives.start < position) & (lives.last >= position)
        ahead[k] = size[lives.storage[across]].sum() + tangents
        position += len(backward[k])
    return own, ahead


def _states(index: StepIndex, made: Sequence[int], last: Sequence[int], count: int) -> IntArray:
    """`RotorLayers.state`."""
    maker, end, size = np.array(made), np.array(last), np.array(index.size_bytes, np.int64)
    state = np.zeros((count, count), np.int64)
    for k in range(1, count):
        # By maker, then summed from the last: [i, k] has the values made from layer i on.
        held = (maker >= 0) & (maker < k) & (end >= k)
        by_layer = np.zeros(count, np.int64)
        np.add.at(by_layer, maker[held], size[held])
        state[:, k] = np.cumsum(by_layer[::-1])[::-1]
    return state


def _run_peak(
    problem: RematProblem, index: StepIndex, made: Sequence[int], ops: Sequence[int], layer: int, stay: Collection[int]
) -> int:
    """Bytes of values of `layer` while `ops` run, those that `stay` to the end; workspaces included."""
    last = {s: i for i in ops for s in (*index.writes[i], *index.reads[i]) if made[s] == layer}
    live = peak = 0
    for i in ops:
        # Results are allocated before anything that the operator reads is freed, as in the simulator.
        live += sum(index.size_bytes[s] for s in index.writes[i] if made[s] == layer)
        peak = max(peak, live + problem.costs.workspace_bytes[i])
        gone = {s for s in (*index.writes[i], *index.reads[i]) if last.get(s) == i and s not in stay}
        live -= sum(index.size_bytes[s] for s in gone)
    return peak


def _back_peak(index: StepIndex, ops: Sequence[int], wanted: Collection[int], own: IntArray) -> int:
    """Bytes while the backward `ops` of a layer run: their own, and the `wanted` values until they are read last."""
    last = {s: i for i in ops for s in index.reads[i] if s in wanted}
    live, peak = sum(index.size_bytes[s] for s in wanted), 0
    for i, beside in zip(ops, own.tolist()):
        peak = max(peak, live + beside)
        live -= sum(index.size_bytes[s] for s, reader in last.items() if reader == i)
    return peak
