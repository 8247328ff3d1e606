"""A graph and its costs as arrays, made once and shared by many simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.graph import StorageKind, TrainingGraph
from remat_compiler.ir.problem import CostTable, Link

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GraphArrays:
    """Reads and writes of a graph in compressed rows, and what its steps cost.

    Row ``i`` of ``reads`` is ``read_items[read_start[i]:read_start[i + 1]]``; likewise ``writes``.
    Resident storages are left out of both, since their bytes never count.
    """

    read_start: IntArray
    read_items: IntArray
    write_start: IntArray
    write_items: IntArray
    size_bytes: IntArray
    kept: npt.NDArray[np.bool_]
    replay: IntArray
    time_ns: IntArray
    workspace_bytes: IntArray
    tangent_bytes: int
    links: tuple[Link, ...]

    @staticmethod
    def of(graph: TrainingGraph, costs: CostTable | None = None) -> GraphArrays:
        """Arrays of `graph` with `costs`; without any, nothing takes time."""
        nothing = (0,) * len(graph.ops)
        costs = costs or CostTable(nothing, nothing, ())
        # Residents never count, and tangents are added in one sum at the boundary: neither has instances.
        counted = [not s.resident and s.kind is not StorageKind.TANGENT for s in graph.storages]
        reads = [[s for s in op.reads if counted[s]] for op in graph.ops]
        writes = [[s for s in op.writes if counted[s]] for op in graph.ops]
        return GraphArrays(
            *_rows(reads),
            *_rows(writes),
            size_bytes=np.array([s.size_bytes if c else 0 for s, c in zip(graph.storages, counted)], np.int64),
            kept=np.array([s.kept for s in graph.storages], np.bool_),
            replay=np.array([-1 if op.replay is None else op.replay for op in graph.ops], np.int64),
            time_ns=np.array(costs.time_ns, np.int64),
            workspace_bytes=np.array(costs.workspace_bytes, np.int64),
            tangent_bytes=sum(s.size_bytes for s in graph.storages if s.kind is StorageKind.TANGENT),
            links=costs.links,
        )


def _rows(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Compressed rows: starts (one more than rows) and items."""
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=start[1:])
    return start, np.array([item for row in rows for item in row], np.int64)


def expand(start: IntArray, items: IntArray, steps: IntArray) -> tuple[IntArray, IntArray]:
    """(position, item) pairs of the rows named by `steps`, in order."""
    count = start[steps + 1] - start[steps]
    total = int(count.sum())
    position = np.repeat(np.arange(len(steps)), count)
    # Position of each item within its own row: the running index less the number of items in the rows before.
    offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    return position, items[np.repeat(start[steps], count) + offset]
