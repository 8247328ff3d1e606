"""Storages of next to no bytes weigh nothing: a relaxation with far fewer choices.

A storage of no bytes is free to keep, so no plan needs to recompute it, and a search has nothing to decide about it:
statistics of normalisations, scalars of the loss, masks.  Every plan of the original is one of the relaxation, of the
same added time and no higher peak.  So a bound of the relaxation is one of the original, and a plan that is optimal
there is optimal in the original too, if it fits.  Storages held by the caller, and random states, keep their bytes.
"""

from __future__ import annotations

from dataclasses import replace

from remat_compiler.ir.graph import Storage, StorageKind
from remat_compiler.ir.problem import RematProblem

NEGLIGIBLE = 64
"""Storages that are smaller than the largest by this factor weigh nothing."""


def zero_small_storages(problem: RematProblem, negligible: int = NEGLIGIBLE) -> RematProblem:
    """`problem` in which storages smaller than the largest movable one by the factor `negligible` have no bytes.

    Returns:
        A problem of the same operators, without a reference; its graph is that of `problem` if no storage lost bytes.

    Raises:
        ValueError: `negligible` is below 1.
    """
    if negligible < 1:
        raise ValueError(f"got the factor {negligible}; it must be at least 1")
    graph = problem.graph
    states = {op.replay for op in graph.ops}

    def moves(storage: Storage) -> bool:
        # No choice moves the bytes of these, so they cannot shrink the search.
        outside = storage.resident or storage.kept or storage.kind is StorageKind.TANGENT
        return not outside and storage.id not in states

    largest = max((s.size_bytes for s in graph.storages if moves(s)), default=0)
    storages = tuple(
        replace(s, size_bytes=0) if moves(s) and s.size_bytes * negligible <= largest else s for s in graph.storages
    )
    # The same object tells callers that there is nothing to relax.
    light = graph if storages == graph.storages else replace(graph, storages=storages)
    return replace(problem, graph=light, reference=None)
