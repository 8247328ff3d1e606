"""The floor: bytes below which no plan can go, because one operator needs them at once.

While an operator runs, its reads, its results and its workspace are alive together.  So are

- every kept storage (output or gradient) that it depends on, since the caller holds the first instance,
- in the backward, all outputs of the forward, and the tangents, which autograd holds.

After the last step everything that is kept is alive together, which is a second bound.  No order of the
backward and no recomputation changes either.  The largest of them is the largest working set.  Operators that plans
may leave out do not count.

This is the floor of the peak by which plans are judged.  A step may be measured below it: a caller may drop outputs
before the backward, and a tangent that autograd itself made (zeros, for an output that no loss reads) is freed at its
last use.  Without `held`, outputs count only while an operator writes or reads them, and tangents while one reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import OpId, Phase, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.problem import CostTable
from remat_compiler.simulate.needed import needed_ops


@dataclass(frozen=True, slots=True)
class Floor:
    """Smallest peak that any plan can have.

    Attributes:
        peak_bytes: A lower bound of the peak of every valid plan.
        op: The operator that forces it; `None` if the kept storages alone do.
    """

    peak_bytes: int
    op: OpId | None


def peak_floor(graph: TrainingGraph, costs: CostTable, *, held: bool = True) -> Floor:
    """The floor of `graph`; ties go to the first operator.

    Args:
        graph: The graph.
        costs: Its workspaces.
        held: Whether the caller holds all outputs and tangents while the backward runs, as the simulator has it.
    """
    kept = [s.id for s in graph.storages if s.kept and (held or s.kind is StorageKind.GRADIENT)]
    # Sets of kept storages are bit masks: a deep graph has as many of them as operators, and a union is one operation.
    bit_of = {storage: 1 << i for i, storage in enumerate(kept)}
    tangents = [s for s in graph.storages if held and s.kind is StorageKind.TANGENT]
    apart, tangent_bytes = {s.id for s in tangents}, sum(s.size_bytes for s in tangents)
    forward_outputs = sum(bit_of.get(s, 0) for op in graph.ops if op.phase is Phase.FORWARD for s in op.writes)
    held_bytes = _weights(_held(graph, bit_of, forward_outputs), [graph.storages[s].size_bytes for s in kept])
    needed = [op for op, runs in zip(graph.ops, needed_ops(graph)) if runs]
    # After the last step all that the caller holds is alive together; without a backward it never gets the tangents.
    floor = Floor(sum(graph.storages[s].size_bytes for s in kept), None)
    if any(op.phase is Phase.BACKWARD for op in needed):
        floor = Floor(floor.peak_bytes + tangent_bytes, None)
    for op in needed:
        # Kept storages and tangents are added below with the held bytes; residents never count.
        own = {s for s in (*op.reads, *op.writes) if s not in bit_of and not graph.storages[s].resident}
        size = sum(graph.storages[s].size_bytes for s in own if s not in apart)
        size += held_bytes[op.id] + costs.workspace_bytes[op.id]
        # Tangents exist from the boundary on; a tangent-free operator may run before it.
        size += tangent_bytes if op.phase is Phase.BACKWARD else 0
        # Strictly larger, so that ties go to the first operator.
        if size > floor.peak_bytes:
            floor = Floor(size, op.id)
    return floor


def _held(graph: TrainingGraph, bit_of: dict[StorageId, int], forward_outputs: int) -> list[int]:
    """For each operator, the set of kept storages alive while it runs, as a bit mask."""
    made_by = graph.producers()
    held: list[int] = []
    for op in graph.ops:
        # In the backward the caller holds all outputs of the forward, whatever the operator depends on.
        mask = forward_outputs if op.phase is Phase.BACKWARD else 0
        for storage in op.writes:
            mask |= bit_of.get(storage, 0)
        for storage in op.reads:
            producer = made_by[storage]
            if producer is not None:
                # Everything held while the producer ran is held now, too: first instances of kept storages live on.
                mask |= held[producer] | bit_of.get(storage, 0)
        held.append(mask)
    return held


def _weights(masks: list[int], sizes: list[int]) -> list[int]:
    """Sum of `sizes` over the bits of each mask."""
    if not sizes or not masks:
        return [0] * len(masks)
    width = (len(sizes) + 7) // 8  # bytes of one mask, the last one padded
    weights = np.array([*sizes, *[0] * (width * 8 - len(sizes))], np.int64)
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
    totals: list[int] = []
    # In blocks, so that unpacked bits of a graph with many parameters stay within some megabytes.
    block = max(1, 4_000_000 // (width * 8))
    for start in range(0, len(masks), block):
        rows = packed.reshape(-1, width)[start : start + block]
        totals += (np.unpackbits(rows, axis=1, bitorder="little") @ weights).tolist()
    return totals
