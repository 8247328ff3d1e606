"""Schedules of a linearised chain that recompute a layer as often as it pays: rotor's dynamic program.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, *Optimal checkpointing for heterogeneous chains* (2019),
section 4: the least time among *memory-persistent* schedules, in which a state that is held stays until the backward
has passed it.  With `m` bytes beyond the state before layer `i`, layers `i` to `j` are run and reversed at the least
of

    keep all of i:     run(i) + best[i + 1, j, m - state(i + 1) - inner(i)]
    hold state k:      run(i .. k - 1) + best[k, j, m - state(k)] + best[i, k - 1, m]
    a single layer:    again(i), to recompute the values that its backward reads

Deviation: the backward of a layer may need no more than the state before it, as in Revolve's chains, and then nothing
is recomputed; rotor always runs the layer once more.  Memory is rounded to units; the simulator judges the plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward
from remat_passes.chains.rotor_layers import RotorLayers, layers_of
from remat_passes.sequences.jit import compiled
from remat_passes.sequences.profile import IntArray
from remat_passes.sequences.sequence import Order, StepIndex, drop_dead_repeats

LONGEST = 200
"""Layers of the longest chain: tables grow with the square, time with the cube."""
UNITS = 400
"""Resolution of memory."""
CELL_WORK, FILLS = 0.03, 2
"""Work of an entry of the tables and a choice for it, in the unit of `remat_passes.planning.portfolio`; and how often
tables are filled, about: once, or three times where nothing comes near the budget."""
FACTORS = (0.94, 0.97, 1.0, 1.03, 1.06, 1.12)
"""Memory that a schedule may use over the budget; estimates are off by that much either way."""
NEVER = 1 << 60
IMPOSSIBLE, KEEP, SINGLE, HOLD = -1, 0, 1, 2
"""Choices; from `HOLD` on, the state to hold is added."""


def persistent_plans(
    problem: RematProblem, index: StepIndex, order: Order, forward: Forward, cuts: Sequence[int]
) -> Iterator[Plan]:
    """Plans of about the budget's peak, and the one of the least memory that the program finds.

    Args:
        problem: The problem; where values must not be saved, plans may save them all the same.
        index: Its graph.
        order: Each operator once; its forward must be that of `forward`.
        forward: The forward as a line.
        cuts: Ends of all layers but the last; at most `LONGEST` layers.
    """
    layers = layers_of(problem, index, order, forward, cuts)
    whole = pair(0, layers.count - 1, layers.count)
    unit = max(int(problem.budget_bytes * FACTORS[-1]) // (UNITS - 1), 1)
    best, choice = _tables(layers, unit)
    memories = [min(int(problem.budget_bytes * factor / unit), UNITS - 1) for factor in FACTORS]
    if best[whole, -1] >= NEVER:
        # Nothing comes near the budget: the least memory that the program can do with, coarsely and then finely.
        memories, most_bytes = [], layers.enough_bytes
        for _ in range(2):
            unit = max(most_bytes // (UNITS - 1), 1)
            best, choice = _tables(layers, unit)
            most_bytes = int((int(np.argmax(best[whole] < NEVER)) + 1) * unit * FACTORS[-1])
    # The least memory last: if the budget is just below the need of a plan, that plan is the smallest peak.
    for memory in dict.fromkeys([*memories, int(np.argmax(best[whole] < NEVER))]):
        if best[whole, memory] < NEVER:
            yield _plan(index, layers, choice, unit, memory)


def work_of(layers: int) -> int:
    """Work of `persistent_plans` for a chain of so many layers, about."""
    # Each of n^2 / 2 pairs of layers chooses among those between them, n / 3 on the mean.
    return int(FILLS * CELL_WORK * UNITS * layers**3 / 6)


def _tables(layers: RotorLayers, unit: int) -> tuple[IntArray, npt.NDArray[np.int16]]:
    """`fill` with memory in units of `unit` bytes."""
    return fill(
        layers.run_ns,
        layers.again_ns,
        _units(layers.state, unit),
        _units(layers.inner, unit),
        _units(layers.run_peak, unit),
        _units(layers.keep_peak, unit),
        _units(layers.back_peak, unit),
        _units(layers.single_peak, unit),
        _units(layers.own, unit),
        UNITS,
    )


@compiled
def pair(i: int, j: int, count: int) -> int:
    """Row of the layers `i` to `j` in the tables, ``0 <= i <= j < count``."""
    return i * count - i * (i - 1) // 2 + j - i


@compiled
def fill(
    run_ns: IntArray,
    again_ns: IntArray,
    state: IntArray,
    inside: IntArray,
    run_peak: IntArray,
    keep_peak: IntArray,
    back_peak: IntArray,
    single_peak: IntArray,
    own: IntArray,
    units: int,
) -> tuple[IntArray, npt.NDArray[np.int16]]:
    """`best` and `choice` by `pair` and memory; see the module docstring and `RotorLayers`, here in units."""
    n = len(run_ns)
    best = np.full((n * (n + 1) // 2, units), NEVER, np.int64)
    choice = np.full((n * (n + 1) // 2, units), IMPOSSIBLE, np.int16)
    for length in range(n):
        for i in range(n - length):
            j = i + length
            # Runs up to the last layer are the forward's, without gradients; repetitions hold those for layer j.
            row, grads = pair(i, j, n), 0 if i + length == n - 1 else own[i + length]
            if i == j:
                # In the last layer this is the first run: all its operators run, and may peak higher than a repetition.
                need = max(single_peak[i], keep_peak[i] if j == n - 1 else 0)
                for m in range(need, units):
                    best[row, m], choice[row, m] = again_ns[i], SINGLE
                continue
            # Keep all of layer i.
            spent = state[i, i + 1] + inside[i]
            below = pair(i + 1, j, n)
            for m in range(max(keep_peak[i] + grads, back_peak[i], spent), units):
                time = run_ns[i] + best[below, m - spent]
                if time < best[row, m]:
                    best[row, m], choice[row, m] = time, KEEP
            # Hold state k: run up to it keeping nothing else, reverse k to j, then i to k - 1 from the start again.
            run, need = 0, 0
            for k in range(i + 1, j + 1):
                run += run_ns[k - 1]
                # Layer k - 1 runs on the state before it, which is alive meanwhile in addition to that of layer i.
                need = max(need, state[i, k - 1] + run_peak[k - 1] + grads)
                right, left, spent = pair(k, j, n), pair(i, k - 1, n), state[i, k]
                for m in range(max(need, spent), units):
                    time = run + best[right, m - spent] + best[left, m]
                    if time < best[row, m]:
                        best[row, m], choice[row, m] = time, HOLD + k
    return best, choice


def _plan(index: StepIndex, layers: RotorLayers, choice: npt.NDArray[np.int16], unit: int, memory: int) -> Plan:
    """The plan that the tables choose for `memory` units."""
    steps: list[int] = []
    boundary = -1
    ran: set[int] = set()

    def run(layer: int) -> None:
        # The tables do not know of pinned operators: their only execution serves all repetitions of the layer.
        steps.extend(i for i in layers.forward[layer] if not (index.pinned[i] and i in ran))
        ran.update(layers.forward[layer])

    # A stack in place of recursion: the layers from i to j with m units, or the backward of layer i where j < i.
    stack = [(0, layers.count - 1, memory)]
    while stack:
        i, j, m = stack.pop()
        if j < i:
            # The first layer to be reversed begins the backward.
            boundary = len(steps) if boundary < 0 else boundary
            steps.extend(layers.backward[i])
            continue
        chosen = int(choice[pair(i, j, layers.count), m])
        if chosen == SINGLE:
            run(i)
            stack.append((i, -1, 0))
        elif chosen == KEEP:
            run(i)
            kept = _units(layers.state[i, i + 1], unit) + _units(layers.inner[i], unit)
            # The last entry comes off first: the layers after i, then the backward of i.
            stack += [(i, -1, 0), (i + 1, j, m - int(kept))]
        else:
            k = chosen - HOLD
            for layer in range(i, k):
                run(layer)
            stack += [(i, k - 1, m), (k, j, m - int(_units(layers.state[i, k], unit)))]
    # Whole layers were repeated; operators of which nobody reads the repetition go.
    return drop_dead_repeats(index, Plan(tuple(map(OpId, steps)), max(boundary, 0)))


def _units(size: IntArray, unit: int) -> IntArray:
    """Bytes in units of `unit` bytes, rounded to the nearest."""
    return (size + unit // 2) // unit
